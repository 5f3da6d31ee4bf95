"""Which requests need another attempt, and how they are asked again.

The decision is a function of the tables, so it is the same after a crash and in the next night.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from acdc_dagster.failures import counts_for
from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.planning.stage import read_plan
from acdc_dagster.reconcile.again import asked_again
from acdc_dagster.reconcile.judged import judged
from acdc_dagster.reconcile.results import results_of
from acdc_dagster.tables import Tables


@dataclass(frozen=True)
class RetryRound:
    """A second, small dispatch of a partition.

    Attributes:
        attempt: Number of the attempt, the same for all its requests.
        classes: Requests by the class of the failure that they are asked again for.
    """

    attempt: int
    classes: dict[str, int]


def plan_retries(job: Job, model: Model, tables: Tables, partition: str) -> RetryRound | None:
    """Fill `retries` with the requests of a partition that need another attempt.

    A request whose best result is a failure is asked again while its last class of failure came no
    more often than the job's `retries` allow, or if it was queued again since. Which failures of
    other partitions count says `failures.counts_for`. It is asked

    - as it was after a `transient` failure, and where it was queued again;
    - with the schema and an instruction to keep to it after a `parse` failure;
    - with the larger `max_tokens` of the job after a `truncated` one.

    Results keep the `request_hash` of the original, so a finished request is never repeated.

    Returns:
        What there is to do; None if nothing, then the partition's `retries` are empty.

    Raises:
        ModelError: The tokenizer or the chat template cannot be used.
        TableError: The storage refused; run the partition again.
    """
    wanted = wanted_again(job, tables, partition)
    rows = asked_again(job, model, tables, partition, wanted) if wanted.height else pl.DataFrame()
    if rows.is_empty():
        if tables.count("retries", partition):
            tables.replace("retries", partition, tables.read("retries", partition).clear())
        return None
    plan = read_plan(tables, partition)
    # Not more replicas than can fill a batch: each starts an engine.
    shards = min(max(len(plan.shards), 1), -(-rows.height // plan.engine.max_num_seqs))
    attempt = int(wanted["last_attempt"].max() or 0) + 1  # pyright: ignore[reportArgumentType]
    tables.replace(
        "retries",
        partition,
        rows.with_columns(
            attempt=pl.lit(attempt, pl.Int32),
            shard=pl.Series(np.arange(rows.height) * shards // rows.height, dtype=pl.Int32),
        ),
    )
    counted = rows.group_by("error_class").agg(pl.len()).sort("error_class")
    return RetryRound(attempt, dict(counted.iter_rows()))


def wanted_again(job: Job, tables: Tables, partition: str) -> pl.DataFrame:
    """The requests of a partition that need another attempt.

    Returns:
        A row a request: `request_hash`, `error_class` (of its last failure) and `last_attempt`.
    """
    best = results_of(job, tables, partition)
    failed = best.filter(pl.col("error_class").is_not_null()).select("request_hash")
    if failed.is_empty():
        return failed.with_columns(error_class=pl.lit(""), last_attempt=pl.lit(0))
    columns = ["text", "finish_reason", "completion_tokens", "error_class", "finished_at"]
    tried = tables.collect(
        tables.scan("inference")
        .filter(counts_for(partition))
        .join(failed.lazy(), on="request_hash", how="semi")
        .select("request_hash", "attempt", *columns, pl.col("error_message").alias("message"))
    )
    queued = tables.collect(
        tables.scan("requeued", partition)
        .join(failed.lazy(), on="request_hash", how="semi")
        .group_by("request_hash")
        .agg(pl.col("after_attempt").max())
    )
    failures = (
        judged(job, tried)
        .join(queued, on="request_hash", how="left")
        # By number: the clocks of a worker and of whoever queues a row again differ.
        .with_columns(counts=pl.col("attempt") > pl.col("after_attempt").fill_null(0))
        .sort("attempt", "finished_at")
        .group_by("request_hash", maintain_order=True)
        .agg(
            pl.col("attempt").max().alias("last_attempt"),
            pl.col("error_class").last(),
            ((pl.col("error_class") == pl.col("error_class").last()) & pl.col("counts"))
            .sum()
            .alias("times"),
        )
    )
    classes = failures["error_class"].unique().to_list()
    allowed = pl.col("error_class").replace_strict(
        {name: job.declared.retries.allowed(name) for name in classes}, return_dtype=pl.Int32
    )
    wanted = failures.filter((pl.col("times") <= allowed) | (pl.col("times") == 0))
    return wanted.select("request_hash", "error_class", "last_attempt").sort("request_hash")
