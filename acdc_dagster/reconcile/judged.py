"""Which results are answers, and why the others are none."""

import polars as pl

from acdc_dagster.job import Job
from acdc_dagster.reconcile.answers import parse_answers

# So much white space at the end of an answer that was cut: the model wrote nothing else any more.
_ENDLESS = r"\s{32}$"
ANSWER = "answer"


def judged(job: Job, results: pl.DataFrame) -> pl.DataFrame:
    """Add what a result is worth to the job.

    An answer that was cut short is still of use as free text, but never parsed as if whole.

    Args:
        job: The job.
        results: With the columns `text`, `finish_reason`, `completion_tokens`, `error_class` and
            `message`.

    Returns:
        The rows in their order, with `error_class` and `message` of the job's view, `given_up`
        (nothing that the job can use) and, if the schema makes any, the parsed columns as fields of
        the column `ANSWER`.
    """
    cut = pl.col("error_class").is_null() & (pl.col("finish_reason") == "length")
    rows = results.with_columns(
        error_class=pl.when(cut).then(pl.lit("truncated")).otherwise("error_class"),
        message=pl.when(cut)
        .then(pl.format("cut after {} tokens", "completion_tokens"))
        .otherwise("message"),
    )
    if job.answer_schema is None:
        return rows.with_columns(
            given_up=pl.col("error_class").is_not_null() & (pl.col("error_class") != "truncated")
        )
    endless = cut & pl.col("text").str.contains(_ENDLESS)
    rows = results.select(endless.alias("endless")).hstack(rows)
    rows = rows.with_columns(
        error_class=pl.when("endless").then(pl.lit("parse")).otherwise("error_class"),
        message=pl.when("endless")
        .then(pl.lit("white space up to max_tokens"))
        .otherwise("message"),
    ).drop("endless")
    whole = rows["error_class"].is_null()
    parsed = parse_answers(job, rows["text"].zip_with(whole, pl.Series([None], dtype=pl.String)))
    bad = whole & parsed.errors.is_not_null()
    rows = rows.with_columns(
        error_class=pl.when(bad).then(pl.lit("parse")).otherwise("error_class"),
        message=pl.when(bad).then(parsed.errors).otherwise("message"),
    ).with_columns(given_up=pl.col("error_class").is_not_null())
    # In one column, where no property can have the name of another column.
    return rows.with_columns(parsed.columns.to_struct(ANSWER)) if job.answer_columns else rows
