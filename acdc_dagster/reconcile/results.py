"""The result that counts for each distinct request of a partition."""

import polars as pl

from acdc_dagster.failures import counts_for
from acdc_dagster.job import Job
from acdc_dagster.reconcile.judged import judged
from acdc_dagster.tables import Tables

_COLUMNS = [
    "request_hash",
    "attempt",
    "text",
    "reasoning",
    "finish_reason",
    "error_class",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "choices",
    "logprobs",
    "embedding",
    "engine",
    "run_id",
    "finished_at",
]


def results_of(job: Job, tables: Tables, partition: str, run_id: str | None = None) -> pl.DataFrame:
    """A row for each distinct request of the partition that has a result that counts for it.

    Of several attempts an answer that fits counts before one that was cut, that before none, and
    the last of its kind by its number. Beside the columns of `inference` and those of
    `judged.judged` there are

    - `attempts`: how many there were that count (see `failures.counts_for`);
    - `elsewhere`: another partition computed it;
    - `reused`: that, or an earlier run of this partition than `run_id` did.

    Args:
        job: The job.
        tables: Its tables.
        partition: The partition key.
        run_id: The partition's newest run of `inference`, which may have computed nothing; the
            newest that has a result if not given.
    """
    asked = tables.scan("request_map", partition).select("request_hash")
    run_id = run_id or _newest_run(tables, partition)
    found = tables.collect(
        tables.scan("inference")
        .filter(counts_for(partition))
        .join(asked, on="request_hash", how="semi")
        .select(
            *_COLUMNS,
            pl.col("error_message").alias("message"),
            (pl.col("partition_key") != partition).alias("elsewhere"),
        )
    )
    return _best(judged(job, found)).with_columns(
        reused=pl.col("elsewhere") | pl.col("run_id").ne_missing(pl.lit(run_id, pl.String))
    )


def _best(found: pl.DataFrame) -> pl.DataFrame:
    """The attempt that counts of each request, and how many there were.

    Only the columns that decide are sorted: answers are large, and most have one attempt.
    """
    if not found["request_hash"].is_duplicated().any():
        return found.with_columns(attempts=pl.lit(1, pl.Int32))
    chosen = (
        found.select(
            "request_hash",
            pl.col("error_class").is_null().alias("fits"),
            pl.col("given_up").not_().alias("of_use"),
            pl.col("finish_reason").is_not_null().alias("answered"),
            "attempt",
            "finished_at",
            pl.int_range(pl.len()).alias("at"),
        )
        .sort("fits", "of_use", "answered", "attempt", "finished_at")
        .group_by("request_hash")
        .agg(pl.col("at").last(), pl.len().cast(pl.Int32).alias("attempts"))
        .sort("at")
    )
    return found[chosen["at"]].with_columns(chosen["attempts"])


def _newest_run(tables: Tables, partition: str) -> str | None:
    rows = tables.scan("inference", partition)
    newest = pl.col("finished_at") == pl.col("finished_at").max()
    runs = tables.collect(rows.filter(newest).select("run_id"))["run_id"]
    return None if runs.is_empty() else runs[0]
