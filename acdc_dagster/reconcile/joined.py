"""The answers to the chunks of a row that was split, as one answer to the row."""

import polars as pl

from acdc_dagster.requests.prompts.chunks import with_chunk

_BETWEEN = "\n\n"


def joined(
    answered: pl.DataFrame, given_up: pl.DataFrame, rejected: pl.Series
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of `outputs` for rows that were split, and rows of `dead_letter` for chunks.

    A row with an answer to at least one chunk is in `outputs`: the answers in the order of the
    chunks, their tokens summed, with status `failed` and the class of the first fault if a chunk
    has one. A chunk without an answer is in `dead_letter`. The `input_rows` of a row, which its
    first chunk has, are counted in `outputs` if the row is there, else in `dead_letter`; those of a
    first chunk that was rejected are counted in `rejected` already, and nowhere else.

    Args:
        answered: Chunks with an answer, as rows of `outputs`.
        given_up: Chunks without, as rows of `dead_letter`.
        rejected: The custom_ids of chunks that were rejected when they were sorted.
    """
    faults = rejected.to_frame("custom_id").with_columns(
        error_class=pl.lit("rejected"), input_rows=pl.lit(0, pl.Int64)
    )
    answers = with_chunk(answered).sort("chunk")
    chunks = with_chunk(pl.concat([answered, given_up, faults], how="diagonal")).sort("chunk")
    texts = answers.group_by("row_id").agg(
        pl.col("text").str.join(_BETWEEN),
        pl.col("reasoning").str.join(_BETWEEN).replace("", None),
        pl.when((pl.col("finish_reason") == "length").any())
        .then(pl.lit("length"))
        .otherwise(pl.col("finish_reason").first())
        .alias("finish_reason"),
        pl.col("reused").all(),
        pl.col("prompt_version", "model", "model_revision", "engine").first(),
    )
    sums = chunks.group_by("row_id").agg(
        pl.col("error_class").drop_nulls().first(),
        pl.col("prompt_tokens", "cached_tokens", "completion_tokens", "input_rows").sum(),
        *(
            pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)
            for name in ("reasoning_tokens", "cost")
        ),
        pl.col("attempts").max(),
        pl.col("line").drop_nulls().first(),
    )
    rows = (
        texts.join(sums, on="row_id")
        .rename({"row_id": "custom_id"})
        .with_columns(
            status=pl.when(pl.col("error_class").is_null())
            .then(pl.lit("ok"))
            .otherwise(pl.lit("failed")),
            request_hash=pl.lit(None, pl.String),  # each chunk has its own, in request_map
            choices=pl.lit(None, pl.String),
            logprobs=pl.lit(None, pl.String),
            embedding=pl.lit(None, pl.List(pl.Float32)),
        )
        .sort("line", "custom_id")
    )
    in_outputs = pl.col("row_id").is_in(rows["custom_id"].implode())
    dead = with_chunk(given_up).with_columns(
        input_rows=pl.when(in_outputs).then(0).otherwise("input_rows")
    )
    return rows, dead.select(given_up.columns)
