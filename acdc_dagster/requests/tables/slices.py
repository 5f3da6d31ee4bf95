"""The rows of a table, a slice at a time, and how each of its formats gives them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import msgspec
import polars as pl

from acdc_dagster.requests.refused import Refused
from acdc_dagster.requests.tables.membership import Membership
from acdc_dagster.requests.tables.out_of_range import out_of_range

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

    def readable(self, id_column: str | None) -> "Slice":
        """The slice with rows as bad lines whose dates or times Python cannot hold.

        Args:
            id_column: What such a row is told by, if that can be read.
        """
        checks = {
            name: check
            for name, dtype in self.rows.schema.items()
            if (check := out_of_range(pl.col(name), dtype)) is not None
        }
        if not checks:
            return self
        found = self.rows.select(**checks)
        unreadable = found.select(pl.any_horizontal(pl.all())).to_series()
        if not unreadable.any():
            return self
        bad = list(self.bad)
        for at in unreadable.arg_true():
            names = [name for name, is_bad in found.row(at, named=True).items() if is_bad]
            row = self.rows[at : at + 1]
            message = (
                f"The column {', '.join(map(repr, names))} holds a date, time or duration beyond "
                "what can be read (the years 1 to 9999)."
            )
            custom_id = None if id_column is None else as_text(row[id_column])[0]
            # As numbers, which is how the file has them.
            original = next(rows_as_json(row.with_columns(pl.col(names).to_physical())))
            refused = Refused("invalid_value", message, custom_id)
            bad.append(BadLine(int(self.places[at]), refused, original))
        return Slice(self.rows.filter(~unreadable), self.places.filter(~unreadable), bad)

    @property
    def height(self) -> int:
        """Input rows of the partition in this slice."""
        return self.rows.height + len(self.bad)


class Table(Protocol):
    """A table in one format."""

    def columns(self, names: set[str]) -> list[str] | None:
        """The table's columns, as many as must be looked at to find `names`; None if none tells."""
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
    """Each value as Python's `str` writes it; null for null and what Python cannot hold."""
    if values.dtype == pl.String:
        return values
    if values.dtype.is_integer():
        return values.cast(pl.String)
    unreadable = out_of_range(pl.col("value"), values.dtype)
    if unreadable is not None:
        kept = pl.when(~unreadable).then("value").alias("value")
        values = values.to_frame("value").select(kept).to_series()
    texts = [None if value is None else str(value) for value in values.to_list()]
    return pl.Series(texts, dtype=pl.String)


def rows_as_json(rows: pl.DataFrame) -> Iterator[bytes]:
    """Each row as a JSON object; a value that JSON does not know is the text of it.

    Of the numbers those are NaN, Infinity and -Infinity.
    """
    if all(dtype == pl.String or dtype.is_integer() for dtype in rows.dtypes):
        # The same bytes, made of columns.
        for text in rows.select(pl.struct(pl.all()).struct.json_encode()).to_series():
            yield text.encode()
        return
    floats = [name for name, dtype in rows.schema.items() if _has_floats(dtype)]
    for row in rows.iter_rows(named=True):
        for name in floats:
            row[name] = _finite(row[name])
        yield msgspec.json.encode(row, enc_hook=str)


def _has_floats(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_has_floats(field.dtype) for field in dtype.fields)  # pyright: ignore
    if isinstance(dtype, pl.List | pl.Array):
        return _has_floats(dtype.inner)  # pyright: ignore
    return dtype.is_float()


def _finite(value: Any) -> Any:
    """The value with texts for the numbers that JSON does not know, which msgspec makes null."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            fields = cast("dict[str, Any]", value)
            return {name: _finite(field) for name, field in fields.items()}
        case list():
            return [_finite(item) for item in cast("list[Any]", value)]
        case _:
            return value
