"""The rows of a table, a slice at a time, and how each of its formats gives them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
import polars as pl

from acdc_dagster.requests.refused import Refused
from acdc_dagster.requests.tables.membership import Membership

ROWS = 16_384


@dataclass(frozen=True)
class BadLine:
    """A line of a text file that is no row.

    Attributes:
        number: Its number in the file, from 1; in a `Slice` its place there, from 0.
        original: The line as it stands.
    """

    number: int
    refused: Refused
    original: bytes


@dataclass(frozen=True)
class Slice:
    """Consecutive rows of one partition, in the table's order.

    Attributes:
        rows: The wanted columns.
        places: The place of each row in the slice, from 0; bad lines have places too.
        bad: Lines that are no rows. Nobody can tell their partition, so each has them all.
    """

    rows: pl.DataFrame
    places: pl.Series
    bad: list[BadLine] = field(default_factory=list[BadLine])

    @staticmethod
    def merged(rows: pl.DataFrame, lines: pl.Series, bad: list[BadLine]) -> "Slice":
        """Rows and bad lines of one file, in the order of their lines in it."""
        if not bad:
            return Slice(rows, pl.int_range(rows.height, eager=True))
        numbers = pl.Series([line.number for line in bad], dtype=pl.Int64)
        order = pl.concat([lines, numbers]).sort()
        places = order.search_sorted(numbers).to_list()
        return Slice(
            rows,
            order.search_sorted(lines).cast(pl.Int64),
            [replace(line, number=place) for line, place in zip(bad, places, strict=True)],
        )

    @property
    def height(self) -> int:
        """Input rows of the partition in this slice."""
        return self.rows.height + len(self.bad)


class Table(Protocol):
    """A table in one format."""

    def columns(self, names: set[str]) -> list[str]:
        """The table's columns, as many as must be looked at to find `names`."""
        ...

    def slices(self, columns: list[str], membership: Membership | None) -> Iterator[Slice]:
        """Those columns of the rows of one partition, or of all rows."""
        ...


@dataclass(frozen=True)
class ScannedTable:
    """A Parquet or Delta table: polars scans it, and skips what a partition does not need."""

    scan: pl.LazyFrame

    def columns(self, names: set[str]) -> list[str]:
        """All columns of the table's schema."""
        return self.scan.collect_schema().names()

    def slices(self, columns: list[str], membership: Membership | None) -> Iterator[Slice]:
        """As `Table` has it."""
        rows = self.scan if membership is None else membership.scan(self.scan)
        members = 0
        for frame in rows.select(columns).collect_batches(chunk_size=ROWS):
            members += frame.height
            yield Slice(frame, pl.int_range(frame.height, eager=True))
        if membership is not None:
            membership.tally(self.scan, members)


def as_text(values: pl.Series) -> pl.Series:
    """Each value as Python's `str` writes it; null stays null."""
    if values.dtype == pl.String:
        return values
    if values.dtype.is_integer():
        return values.cast(pl.String)
    texts = [None if value is None else str(value) for value in values.to_list()]
    return pl.Series(texts, dtype=pl.String)


def rows_as_json(rows: pl.DataFrame) -> Iterator[bytes]:
    """Each row as a JSON object; a value that JSON does not know is the text of it."""
    if all(dtype == pl.String or dtype.is_integer() for dtype in rows.dtypes):
        # The same bytes, made of columns.
        for text in rows.select(pl.struct(pl.all()).struct.json_encode()).to_series():
            yield text.encode()
    else:
        for row in rows.iter_rows(named=True):
            yield msgspec.json.encode(row, enc_hook=str)
