"""Stage 5: bring every answer back to the rows that asked for it."""

from dataclasses import dataclass

import polars as pl

from acdc_dagster.errors import AcdcError, IncompleteError
from acdc_dagster.failures import FAILURES
from acdc_dagster.job import Job
from acdc_dagster.planning.stage import read_plan
from acdc_dagster.reconcile.answers import check_columns, outputs_schema, parse_answers
from acdc_dagster.reconcile.joined import joined
from acdc_dagster.schemas import TableName
from acdc_dagster.tables import Tables


class ConservationError(AcdcError):
    """The rows of a partition do not add up: a bug of ours, caught before anybody relies on it."""


@dataclass(frozen=True)
class Ledger:
    """Where the rows of the source went; counts are rows of the source.

    `balanced` says that every one of them ended in exactly one place.
    """

    input_rows: int
    outputs: int
    rejected: int
    dead_letter: int

    @property
    def balanced(self) -> bool:
        """Whether input rows = outputs + rejected + dead letter."""
        return self.input_rows == self.outputs + self.rejected + self.dead_letter


@dataclass(frozen=True)
class OutputStats:
    """What stage 5 did.

    Attributes:
        outputs: custom_ids with an answer; of the rows, where rows were split.
        failures: custom_ids by failure class, in `outputs` (cut short) and `dead_letter`.
        duplicates: custom_ids answered by the request of another.
    """

    outputs: int
    dead_letter: int
    duplicates: int
    failures: dict[str, int]
    ledger: Ledger


def reconcile(job: Job, tables: Tables, partition: str) -> OutputStats:
    """Fill `outputs` and `dead_letter` for one partition.

    Raises:
        IncompleteError: Requests have no result yet.
        ConservationError: The counts do not add up.
        TableError: The storage refused; run the partition again.
    """
    plan = read_plan(tables, partition)
    _check_order_of_work(tables, partition)
    check_columns(job, tables)
    rows = _with_results(tables, partition)
    missing = rows.filter(pl.col("attempts").is_null())
    if missing.height:
        raise IncompleteError(
            f"{missing.height} of {rows.height} requests of {job.name} have no result for "
            f"partition {partition!r}, for example {missing['custom_id'][0]!r}.",
            f"Materialise {job.name}/inference for this partition; it does only what is missing.",
        )
    judged = _judge(job, rows).with_columns(
        prompt_version=pl.lit(job.prompt_version),
        model=pl.lit(plan.model),
        model_revision=pl.lit(plan.model_revision),
    )
    answered = judged.filter(~pl.col("given_up")).with_columns(
        status=pl.when(pl.col("error_class").is_null())
        .then(pl.lit("ok"))
        .otherwise(pl.lit("failed"))
    )
    given_up = judged.filter("given_up").with_columns(
        remedy=pl.col("error_class").replace_strict(
            {name: failure.remedy for name, failure in FAILURES.items()}, default=None
        )
    )
    if job.declared.too_long.split is not None:
        answered, given_up = joined(answered, given_up, _rejected_by_sorting(tables, partition))
    tables.replace("dead_letter", partition, given_up)
    tables.replace("outputs", partition, answered, schema=outputs_schema(job))
    failures = judged.drop_nulls("error_class").group_by("error_class").agg(pl.len())
    balance = ledger(tables, partition)
    if not balance.balanced:
        raise ConservationError(
            f"{job.name}, partition {partition!r}: {balance}: the rows do not add up.",
            "Please report this with the tables of the partition.",
        )
    return OutputStats(
        outputs=answered.height,
        dead_letter=given_up.height,
        duplicates=rows.height - rows["request_hash"].n_unique(),
        failures=dict(failures.sort("error_class").iter_rows()),
        ledger=balance,
    )


def _check_order_of_work(tables: Tables, partition: str) -> None:
    """See that the later stages have followed the newest `raw_requests`, id by id."""
    raw = tables.read("raw_requests", partition, ["custom_id"])
    followed = pl.concat(
        [
            tables.read("request_map", partition, ["custom_id"]),
            _rejected_by_sorting(tables, partition).to_frame(),
        ]
    )
    if set(raw["custom_id"]) != set(followed["custom_id"]):
        raise IncompleteError(
            f"raw_requests of {tables.job} changed after sorted_requests was made for partition "
            f"{partition!r}.",
            f"Materialise {tables.job}/sorted_requests and what follows it for this partition.",
        )


def _rejected_by_sorting(tables: Tables, partition: str) -> pl.Series:
    """The custom_ids that stage 2 rejected."""
    rejected = tables.read("rejected", partition, ["custom_id", "stage"])
    return rejected.filter(pl.col("stage") == "sorted_requests")["custom_id"]


def ledger(tables: Tables, partition: str) -> Ledger:
    """Count a partition's rows in its tables.

    The input is what stage 1 read; the other counts are of what the last stages wrote.
    """

    def count(name: TableName, *predicates: pl.Expr) -> int:
        rows = tables.scan(name, partition).filter(*predicates)
        return tables.collect(rows.select(pl.col("input_rows").sum())).item() or 0

    rejected_at_once = count("rejected", pl.col("stage") == "raw_requests")
    return Ledger(
        input_rows=count("raw_requests") + rejected_at_once,
        outputs=count("outputs"),
        rejected=count("rejected"),
        dead_letter=count("dead_letter"),
    )


def _with_results(tables: Tables, partition: str) -> pl.DataFrame:
    """Each custom_id of the partition with its request's newest result, in source order."""
    asked = tables.scan("request_map", partition).drop("partition_key")
    results = (
        tables.scan("inference")
        .join(asked.select("request_hash").unique(), on="request_hash", how="semi")
        .sort("finished_at", "attempt")
        .unique("request_hash", keep="last")
        .select(
            "request_hash",
            "text",
            "finish_reason",
            "error_class",
            pl.col("error_message").alias("message"),
            "prompt_tokens",
            "cached_tokens",
            "completion_tokens",
            pl.col("attempt").alias("attempts"),
            "engine",
        )
    )
    rows = asked.join(results, on="request_hash", how="left").sort("line", "custom_id")
    return tables.collect(rows)


def _judge(job: Job, rows: pl.DataFrame) -> pl.DataFrame:
    """Add `error_class`, `message`, `given_up` and the parsed columns.

    An answer that was cut short is still of use as free text, but never parsed as if whole.
    """
    cut = pl.col("error_class").is_null() & (pl.col("finish_reason") == "length")
    rows = rows.with_columns(
        error_class=pl.when(cut).then(pl.lit("truncated")).otherwise("error_class"),
        message=pl.when(cut)
        .then(pl.format("cut after {} tokens", "completion_tokens"))
        .otherwise("message"),
    )
    if job.answer_schema is None:
        return rows.with_columns(
            given_up=pl.col("error_class").is_not_null() & (pl.col("error_class") != "truncated")
        )
    texts = rows.select(pl.when(pl.col("error_class").is_null()).then("text"))["text"]
    parsed = parse_answers(job, texts)
    bad = pl.col("error_class").is_null() & pl.col("parse_error").is_not_null()
    return (
        pl.concat([rows, parsed], how="horizontal")
        .with_columns(
            error_class=pl.when(bad).then(pl.lit("parse")).otherwise("error_class"),
            message=pl.when(bad).then("parse_error").otherwise("message"),
        )
        .with_columns(given_up=pl.col("error_class").is_not_null())
    )
