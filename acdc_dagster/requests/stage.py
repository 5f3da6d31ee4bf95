"""Stage 1: read the source, keep the valid requests, set the others aside with a reason."""

from collections import Counter
from dataclasses import dataclass

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.requests.batch import Source
from acdc_dagster.requests.cuts import Cutter
from acdc_dagster.requests.intake import Intake, RepeatedIdsError
from acdc_dagster.requests.jsonl import request_files
from acdc_dagster.requests.rejected import rejected_rows
from acdc_dagster.requests.table import TableSource
from acdc_dagster.tables import Tables


@dataclass(frozen=True)
class RawStats:
    """What stage 1 did: input_rows = the sum of input_rows over valid requests + rejected.

    `requests` counts the chunks of a row that was split.
    """

    input_rows: int
    requests: int
    rejected: int
    rejected_codes: dict[str, int]
    warnings: list[str]


def take_in(
    job: Job,
    deployment: Deployment,
    tables: Tables,
    partition: str,
    cutter: Cutter | None = None,
) -> RawStats:
    """Fill `raw_requests` and this stage's part of `rejected` for one partition.

    Nothing is committed before the source was read to its end.

    Args:
        job: The job.
        deployment: Where its source is.
        tables: Its tables.
        partition: The partition key.
        cutter: Cuts by tokens of the job's model; needed if the prompt has `truncate_tokens` or
            the job splits texts.

    Raises:
        SourceError: The source is missing, lacks a column, broke while it was read, or has more
            rows that are no valid request than the job allows.
        ModelError: A row is to be cut by tokens, and the tokenizer is not there.
        TableError: The storage refused; run the partition again.
    """
    intake = Intake(source_of(job, deployment, partition, cutter), job.declared.model)
    try:
        tables.replace("raw_requests", partition, intake.frames())
    except RepeatedIdsError:
        tables.replace("raw_requests", partition, intake.frames())
    rejected = rejected_rows(intake.rejections)
    tables.replace("rejected", partition, rejected, stage="raw_requests")
    codes = Counter(sorted(rejected["code"]))
    return RawStats(
        intake.input_rows, intake.requests, rejected.height, dict(codes), intake.warnings
    )


def source_of(
    job: Job, deployment: Deployment, partition: str, cutter: Cutter | None = None
) -> Source:
    """The job's input for one partition; for `cutter` see `take_in`.

    Raises:
        SourceError: It is missing, or lacks a column.
    """
    source = job.declared.source
    if source.requests is not None:
        return request_files(source.requests, partition, deployment.root)
    place = (source.table or "").replace("{partition}", partition)
    options = deployment.environment.storage_options
    return TableSource(job, deployment.resolve(place), options, partition, cutter)
