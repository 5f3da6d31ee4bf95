"""What answers cost, what a provider would ask, and the record of each run."""

import json
from datetime import date
from typing import Any

import pytest
import yaml
from support import Declare
from support_outputs import REFUSED, START, STOP, Lineage, by_id, lineage

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.prices import Prices, TokenPrice
from acdc_dagster.reconcile.costs import RunCosts, comparison
from acdc_dagster.reconcile.run_record import Health, record_run
from acdc_dagster.reconcile.savings import Saved
from acdc_dagster.reconcile.stage import reconcile

# 7.20 an hour is 0.002 a second.
PRICES = Prices(
    device_hour=7.2,
    compare="theirs",
    models={
        "theirs": TokenPrice(
            input=1000,
            cached_input=500,
            output=2000,
            batch_discount=0.5,
            date=date(2026, 11, 1),
            source="a test",
        )
    },
)


def told(made: Lineage, run: str, partition: str, seconds: float, devices: int = 1) -> None:
    """What the workers of a run told of themselves."""
    made.tables.appender("history", f"{run}/{partition}").append(
        [
            {
                "partition_key": partition,
                "run_id": run,
                "shard": 0,
                "engine": "test 1",
                "device": "cpu",
                "settings": json.dumps({"tensor_parallel": devices}),
                "seconds": seconds,
                "finished_at": START,
            }
        ]
    )


@pytest.fixture
def made(deployment: Deployment, declare: Declare) -> Lineage:
    """Two days of four rows, two of which ask the same; the second day asks one thing anew."""
    texts = {"1": "aabc", "2": "abcz"}
    rows = [
        {"id": f"{day}-{n}", "day": day, "text": text}
        for day, of_day in texts.items()
        for n, text in enumerate(of_day)
    ]
    return lineage(deployment, declare, rows, prompt="Count {{ text }}")


def first_day(made: Lineage, **kwargs: Any) -> None:
    """One second at 0.002 for 13, 7 and 0 tokens of work."""
    made.prepare("1")
    made.results(
        {
            "1-0": {**STOP, "text": "1", "completion_tokens": 7},
            "1-2": {**STOP, "text": "2", "completion_tokens": 1},
            "1-3": REFUSED,
        },
        "1",
    )
    told(made, "run", "1", **{"seconds": 1.0, **kwargs})


def costs(made: Lineage, partition: str, prices: Prices | None = PRICES) -> dict[str, Any]:
    of_runs = None if prices is None else RunCosts.of(made.tables, prices)
    reconcile(made.job, made.tables, partition, of_runs)
    found: dict[str, Any] = by_id(made.tables.read("outputs", partition), ("cost",))
    return found


def test_sums_of_cost_are_what_was_spent(made: Lineage) -> None:
    """Shared out by tokens computed; the row that shares an answer costs nothing more."""
    first_day(made)
    cost = costs(made, "1")
    assert cost == pytest.approx({"1-0": 0.0013, "1-1": 0.0, "1-2": 0.0007})
    assert sum(cost.values()) == pytest.approx(0.002)


def test_devices_of_one_replica_cost_together(made: Lineage) -> None:
    """Four GPUs for a second are four seconds."""
    first_day(made, devices=4)
    assert sum(costs(made, "1").values()) == pytest.approx(0.008)


def test_what_was_computed_elsewhere_costs_nothing_here(made: Lineage) -> None:
    """The second day pays for its new row only."""
    first_day(made)
    made.prepare("2")
    made.results({"2-3": {**STOP, "text": "3"}}, "2", run="later", minute=1)
    told(made, "later", "2", seconds=3.0)
    assert costs(made, "2") == pytest.approx({"2-0": 0.0, "2-1": 0.0, "2-3": 0.006})


def test_without_prices_the_cost_is_not_known(made: Lineage) -> None:
    """Null, not nothing; so it is for a run that never told how long it took."""
    first_day(made)
    assert set(costs(made, "1", Prices()).values()) == {None}
    assert set(costs(made, "1", None).values()) == {None}
    made.tables.replace("history", "1", made.tables.read("history").clear())
    assert costs(made, "1")["1-0"] is None


def test_savings_are_what_the_results_cost_where_they_were_computed(made: Lineage) -> None:
    """A row that asks what another does, and on the second day all that the first answered."""
    first_day(made)
    of_runs = RunCosts.of(made.tables, PRICES)
    first = reconcile(made.job, made.tables, "1", of_runs, "run").savings
    assert (first.reused.rows, first.repeated) == (0, Saved(1, 17, pytest.approx(0.0013)))
    made.prepare("2")
    made.results({"2-3": {**STOP, "text": "3"}}, "2", run="later", minute=1)
    told(made, "later", "2", seconds=3.0)
    of_runs = RunCosts.of(made.tables, PRICES)
    second = reconcile(made.job, made.tables, "2", of_runs, "later").savings
    assert second.reused == Saved(3, 28, pytest.approx(0.002))
    assert second.repeated.rows == 0
    assert str(second) == (
        "not computed: 3 rows (28 tokens, 0.0020 USD) whose answer was there before, 0 rows (0 "
        "tokens, 0.0000 USD) that ask what another does"
    )
    unpriced = reconcile(made.job, made.tables, "2", None, "later").savings
    assert unpriced.reused == Saved(3, 28, None)


def test_the_comparison_counts_every_row(made: Lineage) -> None:
    """Three rows with an answer, 10 prompt tokens each, 4 of them cached."""
    first_day(made)
    reconcile(made.job, made.tables, "1", RunCosts.of(made.tables, PRICES))
    found = comparison(made.tables, "1", RunCosts.of(made.tables, PRICES))
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (30, 12, 15)
    # 18 at 1000, 12 at 500, 15 at 2000, each for 10^6 tokens
    assert found.online == pytest.approx(0.054)
    assert found.batch == pytest.approx(0.027)
    assert found.cost == pytest.approx(0.002)
    assert str(found) == (
        "30 prompt tokens (12 cached) and 15 answer tokens. This job: 0.0020 USD; the same tokens "
        "at theirs: 0.0270 USD in batches, 0.0540 USD on-line."
    )
    assert "not known" in str(
        comparison(made.tables, "1", RunCosts.of(made.tables, Prices(compare=None)))
    )


def test_a_run_is_recorded_once_with_its_health(made: Lineage) -> None:
    """Four ids in a minute of 120 items, one of four without an answer."""
    first_day(made, seconds=1.5)
    stats = reconcile(made.job, made.tables, "1", RunCosts.of(made.tables, PRICES))
    for _ in range(2):
        health = record_run(
            made.job, made.tables, "1", "run", RunCosts.of(made.tables, PRICES), stats
        )
    assert health == Health(
        computed=3,
        seconds=1.5,
        items_per_minute=120.0,
        failure_rate=0.25,
        retry_rate=0.0,
        mean_context=pytest.approx(15.0),
        latency_p99=1.0,
        cost=pytest.approx(0.003),
    )
    (row,) = made.tables.read("runs", "1").iter_rows(named=True)
    assert (row["engine"], row["device"], row["currency"]) == ("test 1", "cpu", "USD")
    assert json.loads(row["declaration"])["model"] == made.job.declared.model
    assert json.loads(row["failures"]) == {"permanent": 1}
    assert json.loads(row["plan"])["model"] == row["model"]
    nothing_new = record_run(
        made.job, made.tables, "1", "again", RunCosts.of(made.tables, PRICES), stats
    )
    assert (nothing_new.computed, nothing_new.items_per_minute) == (0, None)
    assert made.tables.count("runs", "1") == 2


def test_the_packages_prices_say_when_and_where() -> None:
    """Each can be compared with, and an unknown model is answered with the known ones."""
    for name in ("gpt-4.1-mini", "gpt-4o-mini", "claude-haiku-4.5"):
        price = Prices(compare=name).compared
        assert price is not None
        assert price.date <= date(2026, 11, 30)
        assert price.source
        assert price.batch(100, 0, 10) < price.online(100, 0, 10)


def test_a_deployment_has_its_own_prices(deployment: Deployment) -> None:
    """An entry of the package can be replaced; a wrong name is told with those that are known."""
    file = deployment.root / "resources" / "local.yaml"
    content = yaml.safe_load(file.read_text())
    own = {"input": 1, "output": 1, "date": "2026-11-01", "source": "contract"}
    content["prices"] = {"device_hour": 2.5, "models": {"gpt-4.1-mini": own}}
    file.write_text(yaml.safe_dump(content))
    prices = Deployment.load(deployment.root, "local").environment.prices
    assert prices.compared is not None
    assert prices.compared.source == "contract"
    content["prices"]["compare"] = "nobody"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(DeclarationError, match=r"'nobody' has no price; choose one of: claude"):
        Deployment.load(deployment.root, "local")
