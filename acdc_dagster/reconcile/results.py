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


def results_of(tables: Tables, partition: str) -> pl.DataFrame:
    """A row for each distinct request of the partition that has a result, wherever it was computed.

    Of several attempts an answer that ended counts before one that was cut, that before none, and
    the newest of its kind. `attempts` says how many there were, `message` why there is no answer,
    and `reused` that another partition or an earlier run than the partition's newest computed it.
    """
    asked = tables.scan("request_map", partition).select("request_hash").unique()
    newest_run = (
        tables.scan("inference", partition).sort("finished_at").select(pl.col("run_id").last())
    )
    run_id = tables.collect(newest_run).item() if tables.count("inference", partition) else None
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
        .drop("elsewhere", "attempt")
    )
    return tables.collect(found)
