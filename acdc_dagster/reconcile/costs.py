"""What answers cost: the seconds of the devices that computed them, shared out by work."""

from dataclasses import dataclass

import polars as pl

from acdc_dagster.prices import Prices
from acdc_dagster.tables import Tables

_HOUR = 3600.0


# What a result took to compute: prompt tokens that no cache held, and those of the answer.
WORK = (
    pl.col("prompt_tokens").cast(pl.Int64).fill_null(0)
    - pl.col("cached_tokens").fill_null(0)
    + pl.col("completion_tokens").fill_null(0)
).alias("work")


@dataclass(frozen=True)
class RunCosts:
    """What the runs of a job cost, by the time that their engines were up.

    Attributes:
        prices: The deployment's.
        runs: A row a run and partition: `partition_key`, `run_id` and `run_cost`; None if the
            deployment has no `device_hour`.
    """

    prices: Prices
    runs: pl.DataFrame | None

    @staticmethod
    def of(tables: Tables, prices: Prices) -> "RunCosts":
        """Those that the workers told of.

        Raises:
            TableError: The storage refused.
        """
        if prices.device_hour is None:
            return RunCosts(prices, None)
        devices = pl.col("settings").str.json_path_match("$.tensor_parallel").cast(pl.Int32)
        seconds = pl.col("seconds") * devices.fill_null(1)
        cost = seconds.sum() * prices.device_hour / _HOUR
        runs = (
            tables.scan("history").group_by("partition_key", "run_id").agg(cost.alias("run_cost"))
        )
        return RunCosts(prices, tables.collect(runs))

    def total(self, partition: str, run_id: str | None = None) -> float | None:
        """What all runs of a partition cost, or one of them; None if that is not known."""
        if self.runs is None:
            return None
        runs = self.runs.filter(pl.col("partition_key") == partition)
        if run_id is not None:
            runs = runs.filter(pl.col("run_id") == run_id)
        return float(runs["run_cost"].sum())


def request_costs(tables: Tables, partition: str, costs: RunCosts) -> pl.DataFrame | None:
    """What each request of a partition cost there, all its attempts together.

    A run's cost is shared out by `WORK`.

    Returns:
        A row a request that was computed in this partition: `request_hash` and `cost`; None if the
        deployment has no `device_hour`.
    """
    if costs.runs is None:
        return None
    runs = costs.runs.lazy().filter(pl.col("partition_key") == partition)
    return tables.collect(
        tables.scan("inference", partition)
        .select("request_hash", "run_id", WORK)
        .join(runs.select("run_id", "run_cost"), on="run_id")
        .with_columns(share=pl.col("work") / pl.col("work").sum().over("run_id"))
        .with_columns(pl.col("share").fill_nan(0.0))
        .group_by("request_hash")
        .agg((pl.col("share") * pl.col("run_cost")).sum().alias("cost"))
    )


@dataclass(frozen=True)
class Comparison:
    """What a partition cost, and what a provider would ask for the same tokens.

    Tokens are those of all rows, also of rows that shared an answer or reused one: a provider
    computes each.

    Attributes:
        cost: None if the deployment has no `device_hour`.
        provider: The model compared with; None if there is none.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    currency: str
    cost: float | None
    provider: str | None
    batch: float | None
    online: float | None

    def __str__(self) -> str:
        tokens = (
            f"{self.prompt_tokens:,} prompt tokens ({self.cached_tokens:,} cached) and "
            f"{self.completion_tokens:,} answer tokens"
        )
        own = "not known (no prices.device_hour)"
        if self.cost is not None:
            own = money(self.cost, self.currency)
        text = f"{tokens}. This job: {own}"
        if self.batch is None or self.online is None:
            return f"{text}."
        return (
            f"{text}; the same tokens at {self.provider}: {money(self.batch, self.currency)} in "
            f"batches, {money(self.online, self.currency)} on-line."
        )


def money(amount: float, currency: str) -> str:
    """An amount as people read it."""
    return f"{amount:,.4f} {currency}" if amount < 1 else f"{amount:,.2f} {currency}"


def comparison(tables: Tables, partition: str, costs: RunCosts) -> Comparison:
    """The comparison for the `outputs` of a partition.

    Raises:
        TableError: The storage refused.
    """
    names = ("prompt_tokens", "cached_tokens", "completion_tokens")
    sums = tables.collect(
        tables.scan("outputs", partition).select(
            pl.col(name).cast(pl.Int64).sum() for name in names
        )
    )
    prompt, cached, completion = (int(value) for value in sums.row(0))
    prices, price = costs.prices, costs.prices.compared
    return Comparison(
        prompt,
        cached,
        completion,
        prices.currency,
        costs.total(partition),
        prices.compare,
        None if price is None else price.batch(prompt, cached, completion),
        None if price is None else price.online(prompt, cached, completion),
    )
