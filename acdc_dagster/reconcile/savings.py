"""What a partition did not have to compute, since an answer was there or shared."""

from dataclasses import dataclass

import polars as pl

from acdc_dagster.reconcile.costs import WORK, RunCosts, money
from acdc_dagster.tables import Tables


@dataclass(frozen=True)
class Saved:
    """Rows that were answered without the engine.

    Attributes:
        rows: custom_ids.
        tokens: Prompt and answer tokens of their results.
        cost: What those results cost in the runs that computed them; None if that is not known.
    """

    rows: int
    tokens: int
    cost: float | None


@dataclass(frozen=True)
class Savings:
    """What reuse and deduplication saved.

    Attributes:
        reused: Of the requests of a partition, those whose result was there before.
        repeated: Rows that share the request of another row of the partition.
        currency: Of the costs.
    """

    reused: Saved
    repeated: Saved
    currency: str

    def __str__(self) -> str:
        return (
            f"not computed: {self._told(self.reused)} whose answer was there before, "
            f"{self._told(self.repeated)} that ask what another does"
        )

    def _told(self, saved: Saved) -> str:
        cost = "" if saved.cost is None else f", {money(saved.cost, self.currency)}"
        rows = "1 row" if saved.rows == 1 else f"{saved.rows:,} rows"
        return f"{rows} ({saved.tokens:,} tokens{cost})"


def savings(tables: Tables, rows: pl.DataFrame, costs: RunCosts | None) -> Savings:
    """What was saved for the rows of a partition.

    Args:
        tables: The job's tables.
        rows: A row a custom_id with its result, see `results.results_of`.
        costs: Of the job's runs.

    Raises:
        TableError: The storage refused.
    """
    tokens = pl.sum_horizontal(
        pl.col(name).cast(pl.Int64) for name in ("prompt_tokens", "completion_tokens")
    )
    first = pl.col("request_hash").is_first_distinct()
    saved = rows.select("run_id", "reused", first.alias("first"), tokens.alias("tokens"), WORK)
    saved = saved.filter(~pl.col("first") | pl.col("reused"))
    runs = None if costs is None else costs.runs
    if runs is not None:
        saved = saved.join(_rates(tables, saved["run_id"], runs), on="run_id", how="left")

    def total(some: pl.DataFrame) -> Saved:
        cost = None if runs is None else float((some["work"] * some["rate"]).sum())
        return Saved(some.height, int(some["tokens"].sum()), cost)

    currency = "" if costs is None else costs.prices.currency
    return Savings(total(saved.filter("first")), total(saved.filter(~pl.col("first"))), currency)


def _rates(tables: Tables, run_ids: pl.Series, runs: pl.DataFrame) -> pl.DataFrame:
    """What a unit of `WORK` cost in each of these runs."""
    work = (
        tables.scan("inference")
        .filter(pl.col("run_id").is_in(run_ids.unique().implode()))
        .group_by("run_id")
        .agg(WORK.sum())
    )
    costs = runs.lazy().group_by("run_id").agg(pl.col("run_cost").sum())
    rate = pl.col("run_cost") / pl.col("work")
    return tables.collect(
        work.join(costs, on="run_id").filter(pl.col("work") > 0).select("run_id", rate=rate)
    )
