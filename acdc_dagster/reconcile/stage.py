"""Stage 5: bring every answer back to the rows that asked for it."""

from dataclasses import dataclass
from typing import cast

import polars as pl

from acdc_dagster.errors import AcdcError, IncompleteError
from acdc_dagster.failures import FAILURES
from acdc_dagster.job import Job
from acdc_dagster.planning.stage import read_plan
from acdc_dagster.reconcile.answers import check_columns, outputs_schema
from acdc_dagster.reconcile.costs import RunCosts, request_costs
from acdc_dagster.reconcile.joined import joined
from acdc_dagster.reconcile.judged import ANSWER
from acdc_dagster.reconcile.ledger import Ledger, ledger
from acdc_dagster.reconcile.results import results_of
from acdc_dagster.reconcile.savings import Savings, savings
from acdc_dagster.requests.taken_in import taken_in_by
from acdc_dagster.schemas import row_schema
from acdc_dagster.tables import Tables


class ConservationError(AcdcError):
    """The rows of a partition do not add up: a bug of ours, caught before anybody relies on it."""


_WRITTEN = 65_536  # rows handed to the writer at a time


@dataclass(frozen=True)
class OutputStats:
    """What stage 5 did.

    Attributes:
        outputs: custom_ids with an answer; of the rows, where rows were split.
        failures: custom_ids by failure class, in `outputs` (cut short) and `dead_letter`.
        requests: Distinct requests.
        retried: Those of them that were asked more than once.
        savings: What was not computed since an answer was there, or shared.
    """

    outputs: int
    dead_letter: int
    requests: int
    retried: int
    failures: dict[str, int]
    ledger: Ledger
    savings: Savings


def reconcile(
    job: Job,
    tables: Tables,
    partition: str,
    costs: RunCosts | None = None,
    run_id: str | None = None,
) -> OutputStats:
    """Fill `outputs` and `dead_letter` for one partition.

    Args:
        job: The job.
        tables: Its tables.
        partition: The partition key.
        costs: Of the job's runs, for what each answer cost.
        run_id: See `results.results_of`.

    Raises:
        IncompleteError: Requests have no result yet, or the tables before are of different runs.
        ConservationError: The counts do not add up.
        TableError: The storage refused; run the partition again.
    """
    plan = read_plan(tables, partition)
    check_columns(job, tables)
    version = _check_order_of_work(tables, partition)
    results = results_of(job, tables, partition, run_id)
    rows = _with_results(tables, partition, results)
    missing = rows.filter(pl.col("attempts").is_null())
    if missing.height:
        raise IncompleteError(
            f"{missing.height} of {rows.height} requests of {job.name} have no result for "
            f"partition {partition!r}, for example {missing['custom_id'][0]!r}.",
            f"Materialise {job.name}/inference for this partition; it does only what is missing.",
        )
    rows = rows.with_columns(
        prompt_version=pl.lit(version, pl.String),
        model=pl.lit(plan.model),
        model_revision=pl.lit(plan.model_revision),
        cost=_cost(tables, partition, costs, rows),
    )
    given_up = rows.filter("given_up")
    # Filtering copies all columns; mostly there is nothing to leave out.
    answered = rows.filter(~pl.col("given_up")) if given_up.height else rows
    answered = answered.with_columns(
        status=pl.when(pl.col("error_class").is_null())
        .then(pl.lit("ok"))
        .otherwise(pl.lit("failed"))
    )
    given_up = given_up.with_columns(
        remedy=pl.col("error_class").replace_strict(
            {name: failure.remedy for name, failure in FAILURES.items()}, default=None
        )
    )
    failures = rows.drop_nulls("error_class").group_by("error_class").agg(pl.len())
    requests, saved = results.height, savings(tables, rows, costs)
    retried = int((results["attempts"] > 1).sum())
    del rows, results
    split = job.declared.too_long.split is not None
    if split:
        answered, given_up = joined(answered, given_up, _rejected_by_sorting(tables, partition))
    tables.replace("dead_letter", partition, given_up)
    # In slices: a writer holds a copy of what it writes.
    slices = (_as_outputs(job, some) for some in answered.iter_slices(_WRITTEN))
    tables.replace("outputs", partition, slices, schema=outputs_schema(job))
    balance = ledger(tables, partition, split=split)
    if not balance.balanced:
        raise ConservationError(
            f"{job.name}, partition {partition!r}: {balance}: the rows do not add up.",
            "Please report this with the tables of the partition.",
        )
    return OutputStats(
        outputs=answered.height,
        dead_letter=given_up.height,
        requests=requests,
        retried=retried,
        failures=dict(failures.sort("error_class").iter_rows()),
        ledger=balance,
        savings=saved,
    )


def _as_outputs(job: Job, answered: pl.DataFrame) -> pl.DataFrame:
    """The columns of `outputs`: ours, then those of the answer."""
    parsed = [pl.col(ANSWER).struct.unnest()] if job.answer_columns else []
    return answered.select(*row_schema("outputs").names(), *parsed)


def _check_order_of_work(tables: Tables, partition: str) -> str | None:
    """See that the later stages have followed the newest `raw_requests`, id by id.

    Returns:
        The prompt version of the requests; None if there are none.
    """
    taken_in_by(tables, partition)
    columns = ("custom_id", "prompt_version")
    raw = tables.scan("raw_requests", partition).select(columns)
    asked = tables.scan("request_map", partition).select(columns)
    rejected = _rejected_by_sorting(tables, partition).to_frame().lazy()
    # Each id is there once, so equal counts and sums of hashes mean equal sets.
    ids = pl.col("custom_id")
    digest = (pl.len(), ids.hash(0).sum().alias("a"), ids.hash(1).sum().alias("b"))
    taken_in = tables.collect(raw.select(digest)).row(0)
    followed = tables.collect(pl.concat([asked.select("custom_id"), rejected]).select(digest)).row(
        0
    )
    version, of_raw = (
        tables.collect(rows.select("prompt_version").head(1))["prompt_version"].first()
        for rows in (asked, raw)
    )
    if taken_in != followed or (version is not None and version != of_raw):
        raise IncompleteError(
            f"raw_requests of {tables.job} changed after sorted_requests was made for partition "
            f"{partition!r}.",
            f"Materialise {tables.job}/sorted_requests and what follows it for this partition.",
        )
    return cast("str | None", version)


def _rejected_by_sorting(tables: Tables, partition: str) -> pl.Series:
    """The custom_ids that stage 2 rejected."""
    rejected = tables.read("rejected", partition, ["custom_id", "stage"])
    return rejected.filter(pl.col("stage") == "sorted_requests")["custom_id"]


def _with_results(tables: Tables, partition: str, results: pl.DataFrame) -> pl.DataFrame:
    """Each custom_id of the partition with its request's result, in the order of the source."""
    asked = tables.read("request_map", partition).drop("partition_key", "prompt_version")
    return asked.sort("line", "custom_id").join(
        results, on="request_hash", how="left", maintain_order="left"
    )


def _cost(tables: Tables, partition: str, costs: RunCosts | None, rows: pl.DataFrame) -> pl.Series:
    """What each row's answer cost here: sums over rows are what was spent.

    Of rows with one request the first has its cost; what was computed elsewhere cost nothing here.
    Null where it is not known.
    """
    of_requests = None if costs is None else request_costs(tables, partition, costs)
    if of_requests is None:
        return pl.Series("cost", [None], dtype=pl.Float64).new_from_index(0, rows.height)
    here = rows.select("request_hash", "elsewhere").join(
        of_requests, on="request_hash", how="left", maintain_order="left"
    )
    return here.select(
        pl.when(~pl.col("request_hash").is_first_distinct() | pl.col("elsewhere"))
        .then(0.0)
        .otherwise("cost")
        .alias("cost")
    )["cost"]
