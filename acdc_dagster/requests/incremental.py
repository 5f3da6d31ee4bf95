"""A partition brought from one version of its Delta table to the next, without reading all of it.

The rows whose ids stood in files that the table lost are taken out, those of the files it gained
are made anew, and the rest is carried over as it is. Where that could give anything else than a
full read, `UnclearError` says why.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

import polars as pl

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job, version_of
from acdc_dagster.requests.batch import Batch, Source
from acdc_dagster.requests.intake import Intake, RepeatedIdsError
from acdc_dagster.requests.prompts.cuts import TOKENS
from acdc_dagster.requests.rejected import rejected_rows
from acdc_dagster.requests.source_chunks import SourceChunk
from acdc_dagster.requests.tables.delta_changes import FileChanges, UnclearError
from acdc_dagster.requests.tables.slices import as_text
from acdc_dagster.requests.tables.table import TableSource
from acdc_dagster.schemas import row_schema
from acdc_dagster.spool import Spool
from acdc_dagster.tables import Tables

# Rows of raw_requests looked through at a time.
_READ = 65_536


@dataclass(frozen=True)
class Origin:
    """What a partition's rows were made from; kept with the commit that holds them.

    Attributes:
        asked: A number that differs where the same row could become another request.
        version: The version of the Delta table; -1 for another source.
    """

    asked: int
    version: int

    @staticmethod
    def of(job: Job, deployment: Deployment, source: Source) -> "Origin":
        """Of a source as it stands.

        Raises:
            ModelError: The prompt cuts by tokens, and the model is not there.
        """
        declared = job.declared
        table = source.delta if isinstance(source, TableSource) else None
        by_tokens = TOKENS in (job.prompt or "")
        digits = version_of(
            version("acdc-dagster"),
            job.prompt_version,
            declared.source.model_dump(),
            declared.partitions.model_dump(),
            declared.timezone,
            deployment.model(declared.model).revision if by_tokens else None,
            None if table is None else table.metadata().id,
        )
        return Origin(int(digits, 16), -1 if table is None else table.version())

    @staticmethod
    def recorded(tables: Tables, partition: str) -> "Origin | None":
        """Of the rows that are in the tables; None if there are none.

        Raises:
            UnclearError: A run broke off between two tables, or wrote rejected rows only.
        """
        found = {
            (
                tables.mark(name, _app_id("asked", partition)),
                tables.mark(name, _app_id("version", partition)),
            )
            for name in ("raw_requests", "rejected")
        }
        asked, version = found.pop()
        if found:
            raise UnclearError("the last run did not get to its end")
        if asked is None or version is None:
            return None
        return Origin(asked, version)

    def marks(self, partition: str) -> dict[str, int]:
        """To be committed with the rows."""
        return {
            _app_id("asked", partition): self.asked,
            _app_id("version", partition): self.version,
        }


def _app_id(what: str, partition: str) -> str:
    return f"source-{what}/{partition}"


@dataclass(frozen=True)
class Refreshed:
    """What the partition holds at the newer version.

    Attributes:
        frames: Rows of `raw_requests`, to be taken once.
        rejected: This stage's rows of `rejected`.
        input_rows: Of the source at the newer version.
        requests: Rows of `raw_requests`,
        carried: and those among them that were there before.
        warnings: About the rows that were made anew.
    """

    frames: Iterator[pl.DataFrame]
    rejected: pl.DataFrame
    input_rows: int
    requests: int
    carried: int
    warnings: list[str]


def refreshed(
    source: TableSource,
    tables: Tables,
    partition: str,
    base: int,
    may_be_rejected: Callable[[int, int], bool],
    on_progress: Callable[[str], None],
) -> Refreshed:
    """The partition at the source's version, made from that at `base`.

    Args:
        source: The job's table; a Delta table with an id column.
        tables: Hold the partition as made from `base`.
        partition: The partition key.
        base: The table's version then.
        may_be_rejected: Whether so many rows of so many may be rejected.
        on_progress: Gets a line on how many rows are taken in, very often.

    Raises:
        UnclearError: A full read could give something else.
        SourceError: A row cannot be read.
        TableError: The storage refused.
    """
    changed = source.changes_since(base)
    gone, come = (_ids(source, changed, files) for files in (changed.removed, changed.added))
    if gone.is_duplicated().any() or come.is_duplicated().any():
        raise UnclearError("an id stands in it more than once")
    touched = pl.concat([gone, come]).unique()
    prior = _Prior(touched)
    spool = Spool()
    for rows in tables.batches("raw_requests", partition, _READ):
        spool.add(prior.carried(rows))
        on_progress(f"{prior.input_rows:,} rows carried over")
    rejected = tables.read("rejected", partition).filter(pl.col("stage") == "raw_requests")
    rejected = prior.carried_rejected(rejected.select(row_schema("rejected").names()))
    prior.check(gone)
    added = _Rows(source, changed, prior.last_line + 1)
    intake = Intake(added, source.model)
    try:
        for frame in intake.frames():
            spool.add(frame)
            on_progress(f"{prior.input_rows + intake.input_rows:,} rows taken in")
    except RepeatedIdsError:
        raise UnclearError("an id stands in it more than once") from None
    rejected = pl.concat([rejected, rejected_rows(intake.rejections)]).sort("source", "line")
    input_rows = prior.input_rows + intake.input_rows
    if not may_be_rejected(rejected.height, input_rows):
        raise UnclearError("more of its rows are no valid requests than the job allows")
    return Refreshed(
        spool.frames(),
        rejected,
        input_rows,
        prior.requests + intake.requests,
        prior.requests,
        intake.warnings,
    )


def _ids(source: TableSource, changed: FileChanges, files: object) -> pl.Series:
    frames = changed.rows(files, [source.id_column], source.membership())
    ids = [pl.Series(dtype=pl.String), *(as_text(rows[source.id_column]) for rows in frames)]
    found = pl.concat(ids).rename("custom_id")
    if found.null_count():
        raise UnclearError("a row that came or went has no id")
    return found


class _Prior:
    """What the tables held, gone through once: what stays of it, and which ids do not.

    Attributes:
        input_rows: Rows of the source that stay,
        requests: and how many of them are requests.
        last_line: The highest line so far.
    """

    def __init__(self, touched: pl.Series) -> None:
        self.input_rows = self.requests = self.last_line = 0
        self._touched = pl.DataFrame({"custom_id": touched})
        self._out: list[pl.Series] = [pl.Series("custom_id", dtype=pl.String)]

    def carried(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those rows of `raw_requests` that stay."""
        out = rows.join(self._touched, on="custom_id", how="semi")
        if (out["input_rows"] != 1).any():
            raise UnclearError("an id that came or went stands in it more than once")
        stay = rows.join(self._touched, on="custom_id", how="anti", maintain_order="left")
        self.requests += stay.height
        self._count(rows, stay, out)
        return stay.drop("prompt_version")

    def carried_rejected(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those rows of `rejected` that stay."""
        out = rows.join(self._touched, on="custom_id", how="semi")
        if (out["code"] == "duplicate_custom_id").any():
            raise UnclearError("an id that came or went stands in it more than once")
        stay = rows.join(self._touched, on="custom_id", how="anti", maintain_order="left")
        self._count(rows, stay, out)
        return stay

    def _count(self, rows: pl.DataFrame, stay: pl.DataFrame, out: pl.DataFrame) -> None:
        self.input_rows += int(stay["input_rows"].sum())
        self._out.append(out["custom_id"])
        if rows.height:
            self.last_line = max(self.last_line, int(rows.select(pl.col("line").max()).item()))

    def check(self, gone: pl.Series) -> None:
        """See that what does not stay is what stood in the removed files, row for row."""
        out = pl.concat(self._out)
        if out.is_in(gone.implode()).all():
            if out.len() == gone.len():
                return
            raise UnclearError("a row that went is not among those of the last run")
        raise UnclearError("an id that came stands in it already")


class _Rows:
    """The rows of the added files as a source."""

    def __init__(self, source: TableSource, changed: FileChanges, first: int) -> None:
        self._source = source
        self._changed = changed
        self._first = first

    @property
    def warnings(self) -> list[str]:
        return self._source.warnings

    @property
    def chunks(self) -> list[SourceChunk]:
        return []

    def batches(self) -> Iterator[Batch]:
        source = self._source
        rows = self._changed.rows(self._changed.added, source.wanted, source.membership())
        return source.batches_of(rows, self._first)
