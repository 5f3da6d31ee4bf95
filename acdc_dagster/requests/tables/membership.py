"""Which partition a row of a table belongs to, and how many rows belong to none."""

from dataclasses import dataclass, field

import polars as pl

from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.requests.tables.out_of_range import out_of_range

_SHOWN = 3


@dataclass
class Membership:
    """The rows of one partition, told by a column; it counts what it leaves out.

    Attributes:
        column: The column compared with the partition key.
        key: The Dagster partition key.
        nulls: Rows seen without a value in the column: no partition has them.
        unreadable: Rows seen with a date outside of the years 1 to 9999 there: none has them.
        members: Rows seen of this partition.
        others: Some keys seen of other partitions.
    """

    job: Job
    column: str
    key: str
    nulls: int = 0
    unreadable: int = 0
    members: int = 0
    others: set[str] = field(default_factory=set[str])

    def key_of(self, dtype: pl.DataType) -> pl.Expr:
        """The Dagster partition key that a row belongs to, in the job's time zone.

        Raises:
            SourceError: The column's type has no text to compare a key with, or no hours.
        """
        self._check(dtype)
        declared = self.job.declared.partitions
        cadence, begins_on = declared.cadence, declared.begins_on
        value = pl.col(self.column)
        unreadable = out_of_range(value, dtype)
        if unreadable is not None:
            value = pl.when(~unreadable).then(value)
        if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
            value = value.dt.convert_time_zone(self.job.declared.timezone)
            if cadence == "hourly":  # where summer time ends, Dagster names the second by offset
                wall = value.dt.strftime("%Y-%m-%d-%H:00")
                before = (value - pl.duration(hours=1)).dt.strftime("%Y-%m-%d-%H:00")
                return pl.when(wall == before).then(wall + value.dt.strftime("%z")).otherwise(wall)
        if isinstance(dtype, (pl.Date, pl.Datetime)):
            match cadence:
                case "hourly":
                    return value.dt.strftime("%Y-%m-%d-%H:00")
                case "weekly":
                    since = (value.dt.weekday().cast(pl.Int64) - begins_on) % 7
                    return (value.dt.date() - pl.duration(days=since)).dt.strftime("%Y-%m-%d")
                case "monthly":
                    month = (value.dt.date() - pl.duration(days=begins_on - 1)).dt
                    return month.strftime(f"%Y-%m-{begins_on:02}")
                case _:
                    return value.dt.strftime("%Y-%m-%d")
        return value.cast(pl.String)

    def _check(self, dtype: pl.DataType) -> None:
        where = f"{self.job.folder / 'defs.yaml'}: source.partition_column"
        if dtype.is_nested() or isinstance(dtype, (pl.Binary, pl.Duration, pl.Object)):
            raise SourceError(
                f"{where} is {self.column!r}, of the type {dtype}, which is no partition key.",
                "Name a column of text, numbers, dates or times.",
            )
        if isinstance(dtype, pl.Date) and self.job.declared.partitions.cadence == "hourly":
            raise SourceError(
                f"{where} is {self.column!r}, of the type Date, which has no hours.",
                "Name a column with times, or declare partitions of whole days.",
            )

    def scan(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The members among the rows of a scan, which may skip what it need not read."""
        return rows.filter(self.key_of(rows.collect_schema()[self.column]) == self.key)

    def tally(self, rows: pl.LazyFrame, members: int) -> None:
        """Count what `scan` left out; `members` is how many rows it gave."""
        self.members = members
        absent = rows.filter(pl.col(self.column).is_null()).select(pl.len())
        self.nulls = absent.collect().item()
        unreadable = out_of_range(pl.col(self.column), rows.collect_schema()[self.column])
        if unreadable is not None:
            self.unreadable = rows.select(unreadable.sum()).collect().item()
        if members == 0:
            key = self.key_of(rows.collect_schema()[self.column])
            self.others = set(rows.select(key=key).drop_nulls().head(1000).collect()["key"])

    def keep(self, keys: pl.Series) -> pl.Series:
        """Which of some rows are members, by their keys as text; counts them and the others."""
        member = keys.eq(self.key).fill_null(value=False)
        self.nulls += keys.null_count()
        self.members += int(member.sum())
        if len(self.others) < _SHOWN:
            self.others.update(keys.filter(~member).drop_nulls().head(1000))
        return member

    def warnings(self, place: str) -> list[str]:
        """What a user should know of the rows left out."""
        told: list[str] = []
        if self.nulls:
            told.append(
                f"{self.nulls} row(s) of {place} have no value in the partition column "
                f"{self.column!r}: they belong to no partition and no run takes them."
            )
        if self.unreadable:
            told.append(
                f"{self.unreadable} row(s) of {place} have a date outside of the years 1 to 9999 "
                f"in the partition column {self.column!r}: they belong to no partition and no run "
                "takes them."
            )
        if not self.members and self.others:
            some = ", ".join(map(repr, sorted(self.others)[:_SHOWN]))
            told.append(
                f"No row of {place} is in the partition {self.key!r}; the column {self.column!r} "
                f"says, for example, {some}."
            )
        return told
