"""The result that counts for each distinct request of a partition."""

import polars as pl

from acdc_dagster.tables import Tables

_COLUMNS = [
    "request_hash",
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


def results_of(tables: Tables, partition: str, run_id: str | None = None) -> pl.DataFrame:
    """A row for each distinct request of the partition that has a result, wherever it was computed.

    Of several attempts an answer that ended counts before one that was cut, that before none, and
    the newest of its kind. Beside the columns of `inference` there are

    - `attempts`: how many there were;
    - `message`: why there is no answer;
    - `elsewhere`: another partition computed it;
    - `reused`: that, or an earlier run of this partition than `run_id` did.

    Args:
        tables: The job's tables.
        partition: The partition key.
        run_id: The partition's newest run of `inference`, which may have computed nothing; the
            newest that has a result if not given.
    """
    asked = tables.scan("request_map", partition).select("request_hash").unique()
    run_id = run_id or _newest_run(tables, partition)
    found = (
        tables.scan("inference")
        .join(asked, on="request_hash", how="semi")
        .select(
            *_COLUMNS,
            pl.col("error_message").alias("message"),
            pl.len().over("request_hash").cast(pl.Int32).alias("attempts"),
            pl.col("attempt"),
            (pl.col("partition_key") != partition).alias("elsewhere"),
        )
        .sort(
            pl.col("error_class").is_null(),
            pl.col("finish_reason").ne_missing("length"),
            "finished_at",
            "attempt",
        )
        .unique("request_hash", keep="last")
        .with_columns(reused=pl.col("elsewhere") | pl.col("run_id").ne_missing(run_id))
        .drop("attempt")
    )
    return tables.collect(found)


def _newest_run(tables: Tables, partition: str) -> str | None:
    rows = tables.scan("inference", partition)
    newest = pl.col("finished_at") == pl.col("finished_at").max()
    runs = tables.collect(rows.filter(newest).select("run_id"))["run_id"]
    return None if runs.is_empty() else runs[0]
