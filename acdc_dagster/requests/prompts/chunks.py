"""A row whose text is split: one request a chunk, and the way back from chunk to row.

While a row is judged, it is one request whose body is the bodies of its chunks, a line each. So a
row that stands in the source twice, or is rejected, is so as a whole. After that each chunk is a
request with a custom_id of its own.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from acdc_dagster.job import Split
from acdc_dagster.requests.prompts.cuts import Cutter, needed

_DIGITS = 4


class Splitter:
    """Makes of a row one row a chunk of its text, and counts."""

    def __init__(self, split: Split, cutter: Cutter | None) -> None:
        self._split = split
        self._cutter = cutter
        self.forget()

    def parts(self, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The row with each chunk in the place of its text; what is not text is one chunk.

        Raises:
            ModelError: The tokenizer is not there.
        """
        column, text = self._split.column, row[self._split.column]
        if not isinstance(text, str):
            return [row]
        cutter = needed(self._cutter)
        chunks = cutter.chunks(text, self._split.tokens, self._split.overlap)
        if len(chunks) > 1:
            self._rows += 1
            self._chunks += len(chunks)
        return [{**row, column: text[start:end]} for start, end in chunks]

    def forget(self) -> None:
        """The rows come again."""
        self._rows = self._chunks = 0

    @property
    def warnings(self) -> list[str]:
        """How many rows were split, if any."""
        if not self._rows:
            return []
        rows = "1 row was" if self._rows == 1 else f"{self._rows:,} rows were"
        return [f"{rows} split into {self._chunks:,} chunks in `{self._split.column}`."]


def as_one(bodies: list[str]) -> str:
    """The bodies of a row's chunks as one; JSON written by msgspec has no line ends."""
    return "\n".join(bodies)


def by_chunk(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `raw_requests`, one a chunk, of such rows with all chunks in one.

    The custom_id of a chunk is that of its row, a colon, and the number of the chunk from 0001. The
    first chunk has the row's `input_rows` and the others have 0, so that sums stay what they were.
    """
    digits = pl.col("chunk").cast(pl.String).str.zfill(_DIGITS)
    return (
        rows.with_columns(pl.col("body").str.split("\n"))
        .with_columns(chunk=pl.int_ranges(1, pl.col("body").list.len() + 1))
        .explode("body", "chunk")
        .with_columns(
            custom_id=pl.format("{}:{}", "custom_id", digits),
            input_rows=pl.when(pl.col("chunk") == 1).then("input_rows").otherwise(0).cast(pl.Int64),
        )
        .drop("chunk")
    )


def with_chunk(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of chunks with their row's id in `row_id` and their number in `chunk`.

    The number stands behind the last colon, so the row's id may have any.
    """
    parts = pl.col("custom_id").str.extract_groups(r"(?s)^(?<row_id>.*):(?<chunk>\d+)$")
    return (
        rows.with_columns(parts.alias("parts"))
        .unnest("parts")
        .with_columns(pl.col("chunk").cast(pl.Int64))
    )
