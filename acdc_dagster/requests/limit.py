"""How many rows of a source may be no valid request, and what is said where more are."""

import math
from collections import Counter

import polars as pl

from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.schemas import TableName
from acdc_dagster.tables import Tables

# Rejected rows that no job without a limit of its own fails for: so few, or so small a share.
_FEW, _SMALL_SHARE = 10, 0.05
# Rejected rows that a message shows.
_SHOWN = 3


def may_be_rejected(rejected: int, rows: int, limit: float | None = None) -> bool:
    """Whether so many of a source's rows may be rejected; never all of them.

    Args:
        rejected: Rows that are rejected (see `rows_of_source`).
        rows: All rows.
        limit: `max_rejected` of the job: a count if an int, a share if a float.
    """
    if rejected == rows:
        return rows == 0
    if limit is None:
        return rejected <= _FEW or rejected <= _SMALL_SHARE * rows
    return rejected <= (limit if isinstance(limit, int) else limit * rows)


def rows_of_source(rejected: pl.DataFrame) -> int:
    """How many rows of the source are behind rows of `rejected`.

    A request that stands for several equal rows counts as all of them, and a row of which chunks
    are rejected counts once.
    """
    by_row = rejected.group_by("source", "line").agg(pl.col("input_rows").max())
    return int(by_row.select(pl.col("input_rows").clip(1).sum()).item())


def counts_by_code(rejected: pl.DataFrame) -> dict[str, int]:
    """How many rows of `rejected` have each code, in the order of the codes."""
    return dict(Counter(sorted(rejected["code"])))


def too_many_rejected(
    job: Job, tables: Tables, rows: int, rejected: pl.DataFrame, not_written: TableName
) -> SourceError:
    """The fault that more rows are rejected than the job allows.

    Args:
        job: The job.
        tables: Its tables.
        rows: Rows of the source.
        rejected: Those of them that are rejected, as rows of `rejected` in source order.
        not_written: The table that the stage was to fill.
    """
    where, refused = job.folder / "defs.yaml", rows_of_source(rejected)
    counts = ", ".join(f"{code}: {count}" for code, count in counts_by_code(rejected).items())
    examples = "".join(
        f"\n  {source}:{line}: {message}"
        for source, line, message in rejected.select("source", "line", "message")
        .head(_SHOWN)
        .iter_rows()
    )
    remedy = f"Mend the rows; all of them are in {tables.uri('rejected')}."
    if refused < rows:
        share = math.ceil(100 * refused / rows) / 100
        remedy += (
            f" Or allow them: set max_rejected in {where} to {refused} (rows) or {share} "
            "(a share of the rows)."
        )
    return SourceError(
        f"{refused} of {rows} rows of {job.name} are no valid requests ({counts}); "
        f"{not_written} was not written. The first:{examples}",
        remedy,
    )


def too_many_for_both_stages(
    job: Job, tables: Tables, partition: str, refused: pl.DataFrame
) -> SourceError | None:
    """The fault that stages 1 and 2 together reject more rows than the job allows.

    Args:
        job: The job.
        tables: Hold what stage 1 made of the partition.
        partition: The partition key.
        refused: Rows of `rejected` of stage 2.

    Returns:
        None if they do not.

    Raises:
        TableError: The storage refused.
    """
    if refused.is_empty():
        return None
    columns = ["source", "line", "code", "message", "input_rows"]
    before = tables.read("rejected", partition, [*columns, "stage"])
    before = before.filter(pl.col("stage") == "raw_requests").select(columns)
    rejected = pl.concat([before, refused.select(columns)]).sort("source", "line")
    valid = tables.scan("raw_requests", partition).select(pl.col("input_rows").sum())
    rows = int(tables.collect(valid).item()) + int(before["input_rows"].sum())
    if may_be_rejected(rows_of_source(rejected), rows, job.declared.max_rejected):
        return None
    return too_many_rejected(job, tables, rows, rejected, "sorted_requests")
