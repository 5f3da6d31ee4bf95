"""What a source hands on: some of its rows at a time, the good ones as columns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.requests.source_chunks import SourceChunk
from acdc_dagster.schemas import row_schema

_OF_THE_PARTITION = ("input_rows", "prompt_version")
# The columns of `Batch.requests`: those of raw_requests that one row decides.
REQUEST = pl.Schema(
    {
        name: dtype
        for name, dtype in row_schema("raw_requests").items()
        if name not in _OF_THE_PARTITION
    }
)


@dataclass(frozen=True)
class Batch:
    """Some rows of a source, in its order.

    Attributes:
        requests: The rows that are valid by themselves, with the columns `REQUEST`.
        original: A row as it stands in the source and its byte offset there (None in a table), by
            its place in `requests`; asked for only where the whole source shows that the row
            cannot run.
        rejections: The other rows.
        chunked: Each body is those of one or more chunks, see `chunks`.
    """

    requests: pl.DataFrame
    original: Callable[[int], tuple[bytes, int | None]]
    rejections: list[Rejection]
    chunked: bool = False

    @property
    def input_rows(self) -> int:
        """Rows of the source in this batch; blank lines do not count."""
        return self.requests.height + len(self.rejections)


class Source(Protocol):
    """A job's input. It can be read again, and gives the same batches while nobody changes it."""

    @property
    def warnings(self) -> list[str]:
        """What is allowed but worth knowing, once all batches are read."""
        ...

    @property
    def chunks(self) -> list[SourceChunk]:
        """The source's bytes or rows in chunks, once all batches are read."""
        ...

    def batches(self) -> Iterator[Batch]:
        """All rows, in order, a bounded number at a time.

        Raises:
            SourceError: The source is missing, lacks a column or broke while it was read.
        """
        ...
