"""Stage 1: read the source, keep the valid requests, set the others aside with a reason."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import polars as pl

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.requests.batch import Source
from acdc_dagster.requests.files.jsonl import RequestFiles, local_files, request_files
from acdc_dagster.requests.incremental import Origin, Refreshed, refreshed
from acdc_dagster.requests.intake import Intake, RepeatedIdsError
from acdc_dagster.requests.limit import counts_by_code, may_be_rejected, too_many_rejected
from acdc_dagster.requests.prompts.cuts import Cutter
from acdc_dagster.requests.rejected import rejected_rows
from acdc_dagster.requests.source_chunks import SourceChunk, changes, chunk_rows
from acdc_dagster.requests.tables.delta_changes import UnclearError
from acdc_dagster.requests.tables.table import TableSource
from acdc_dagster.requests.taken_in import TakingIn
from acdc_dagster.tables import Tables

# What `rejected` is marked with where `raw_requests` is not written.
_NOT_WRITTEN = Origin(asked=0, version=-1)


@dataclass(frozen=True)
class RawStats:
    """What stage 1 did: input_rows = the sum of input_rows over valid requests + rejected.

    `requests` counts the chunks of a row that was split; `carried` are those of them that an
    incremental run took over from the last one.
    """

    input_rows: int
    requests: int
    rejected: int
    rejected_codes: dict[str, int]
    warnings: list[str]
    carried: int = 0


def take_in(
    job: Job,
    deployment: Deployment,
    tables: Tables,
    partition: str,
    cutter: Cutter | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> RawStats:
    """Fill `raw_requests`, this stage's part of `rejected`, and `source_chunks` for one partition.

    Nothing is committed before the source was read to its end.

    Args:
        job: The job.
        deployment: Where its source is.
        tables: Its tables.
        partition: The partition key.
        cutter: Cuts by tokens of the job's model; needed if the prompt has `truncate_tokens` or
            the job splits texts.
        on_progress: Gets a line on how many rows are taken in, very often.

    Raises:
        SourceError: The source is missing, lacks a column or broke while it was read; or more of
            its rows are no valid request than the job allows, then they are in `rejected`.
        ModelError: A row is to be cut by tokens, and the tokenizer is not there.
        TableError: The storage refused, or another run took in the same partition meanwhile; run
            the partition again.
    """
    run = TakingIn.begun(partition)
    source = source_of(job, deployment, partition, cutter)
    origin = Origin.of(job, deployment, source)
    unclear: list[str] = []
    if job.declared.source.incremental:
        try:
            found = _refreshed(job, source, tables, partition, origin, on_progress)
        except UnclearError as reason:
            unclear = [f"The source table was read in full, not only what changed: {reason}."]
        else:
            if found is not None:
                return _carried_over(job, found, tables, run, origin)
    intake = Intake(source, job.declared.model)
    before = tables.read("source_chunks", partition)
    too_many = False
    while True:
        try:
            rows = _allowed(job, intake, on_progress)
            first = next(rows, None)
            frames = chain([] if first is None else [first], rows)
            tables.replace(
                "raw_requests",
                partition,
                frames,
                row_bytes=0 if first is None else first.estimated_size() / max(first.height, 1),
                marks=origin.marks(partition) | run.marks,
            )
            break
        except RepeatedIdsError:
            continue
        except _TooManyRejectedError:
            too_many = True
            break
    rejected = rejected_rows(intake.rejections)
    codes = counts_by_code(rejected)
    if too_many:
        marks = _NOT_WRITTEN.marks(partition) | run.marks
        tables.replace("rejected", partition, rejected, stage="raw_requests", marks=marks)
        raise too_many_rejected(job, tables, intake.input_rows, rejected, "raw_requests")
    _write_beside(tables, run, origin, rejected, source.chunks)
    warnings = [*unclear, *intake.warnings, *changes(before, source.chunks)]
    return RawStats(intake.input_rows, intake.requests, rejected.height, codes, warnings)


def _write_beside(
    tables: Tables,
    run: TakingIn,
    origin: Origin,
    rejected: pl.DataFrame,
    chunks: list[SourceChunk],
) -> None:
    """Write what stands beside `raw_requests`, which the run has written."""
    marks = origin.marks(run.partition) | run.marks
    run.check(tables, "raw_requests")
    tables.replace("rejected", run.partition, rejected, stage="raw_requests", marks=marks)
    run.check(tables, "raw_requests", "rejected")
    tables.replace("source_chunks", run.partition, chunk_rows(chunks), marks=run.marks)
    run.check(tables, "raw_requests", "rejected", "source_chunks")


def _refreshed(
    job: Job,
    source: Source,
    tables: Tables,
    partition: str,
    origin: Origin,
    on_progress: Callable[[str], None],
) -> Refreshed | None:
    """The partition with what changed in its table; None if it was never made.

    Raises:
        UnclearError: Only a full read can tell.
    """
    last = Origin.recorded(tables, partition)
    if last is None or not isinstance(source, TableSource):
        return None
    if last.asked != origin.asked:
        raise UnclearError(
            "the prompt, the schema, the sampling, the model, the source or the version of this "
            "package is another one than at the last run"
        )
    limit = job.declared.max_rejected
    return refreshed(
        source,
        tables,
        partition,
        last.version,
        lambda rejected, rows: may_be_rejected(rejected, rows, limit),
        on_progress,
    )


def _carried_over(
    job: Job, found: Refreshed, tables: Tables, run: TakingIn, origin: Origin
) -> RawStats:
    marks = origin.marks(run.partition) | run.marks
    frames = (frame.with_columns(_prompt_version(job)) for frame in found.frames)
    tables.replace("raw_requests", run.partition, frames, marks=marks)
    _write_beside(tables, run, origin, found.rejected, [])
    return RawStats(
        found.input_rows,
        found.requests,
        found.rejected.height,
        counts_by_code(found.rejected),
        found.warnings,
        found.carried,
    )


class _TooManyRejectedError(Exception):
    """Nothing may be committed to `raw_requests`."""


def _allowed(
    job: Job, intake: Intake, on_progress: Callable[[str], None]
) -> Iterator[pl.DataFrame]:
    for frame in intake.frames():
        on_progress(f"{intake.input_rows:,} rows taken in")
        yield frame.with_columns(_prompt_version(job))
    limit = job.declared.max_rejected
    if not may_be_rejected(len(intake.rejections), intake.input_rows, limit):
        raise _TooManyRejectedError


def _prompt_version(job: Job) -> pl.Expr:
    return pl.lit(job.prompt_version).alias("prompt_version")


def source_of(
    job: Job, deployment: Deployment, partition: str, cutter: Cutter | None = None
) -> Source:
    """The job's input for one partition; for `cutter` see `take_in`.

    Raises:
        SourceError: It is missing, or lacks a column.
    """
    source = job.declared.source
    options = deployment.environment.storage_options
    if source.requests is not None:
        pattern, root = source.requests, deployment.root
        files = request_files(pattern, partition, root, options)
        listed = (lambda: local_files(pattern, partition, root)) if "://" not in pattern else None
        return RequestFiles(files, job.declared.model, listed=listed)
    place = (source.table or "").replace("{partition}", partition)
    return TableSource(job, deployment.resolve(place), options, partition, cutter)
