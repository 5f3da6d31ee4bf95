"""Stage 1: read the source, keep the valid requests, set the others aside with a reason."""

from dataclasses import dataclass

import polars as pl

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.requests.intake import Taken
from acdc_dagster.requests.jsonl import request_files, take_files
from acdc_dagster.requests.rejected import rejected_rows
from acdc_dagster.requests.table import open_table, take_table
from acdc_dagster.tables import Tables


@dataclass(frozen=True)
class RawStats:
    """What stage 1 did: input_rows = the sum of input_rows over valid requests + rejected."""

    input_rows: int
    requests: int
    rejected: int
    rejected_codes: dict[str, int]
    warnings: list[str]


def take_in(job: Job, deployment: Deployment, tables: Tables, partition: str) -> RawStats:
    """Fill `raw_requests` and this stage's part of `rejected` for one partition.

    Nothing is written before the source was read to its end.

    Raises:
        SourceError: The source is missing, lacks a column or broke while it was read.
        TableError: The storage refused; run the partition again.
    """
    taken = _take(job, deployment, partition)
    rejected = rejected_rows(taken.rejections)
    tables.replace("rejected", partition, rejected, stage="raw_requests")
    tables.replace("raw_requests", partition, taken.requests)
    codes = rejected.group_by("code").agg(pl.len()).sort("code")
    return RawStats(
        taken.input_rows,
        taken.requests.height,
        rejected.height,
        dict(codes.iter_rows()),
        taken.warnings,
    )


def _take(job: Job, deployment: Deployment, partition: str) -> Taken:
    source = job.declared.source
    if source.requests is not None:
        files = request_files(source.requests, partition, deployment.root)
        return take_files(files, job.declared.model)
    place = _table_place(job, deployment, partition)
    rows = open_table(job, place, deployment.environment.storage_options)
    return take_table(job, rows, place, partition)


def _table_place(job: Job, deployment: Deployment, partition: str) -> str:
    place = (job.declared.source.table or "").replace("{partition}", partition)
    return deployment.resolve(place)
