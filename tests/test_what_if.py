"""Other GPUs, deadlines and budgets, as a table, and what is said where they cannot be met."""

import json
import re

import pytest
from click.testing import CliRunner
from support import Declare
from support_planner import TablesOf, declared, deployed, fill

from acdc_dagster.cli import main
from acdc_dagster.deployment import Deployment
from acdc_dagster.gpus import known_gpus
from acdc_dagster.planning.choice import Goal, PlanError
from acdc_dagster.planning.forecast import forecast
from acdc_dagster.planning.forecast_report import Forecast

PRICES = {"H100": 3.0, "L4": 0.7}


@pytest.fixture
def site(deployment: Deployment, declare: Declare, tables: TablesOf) -> Deployment:
    """A job of 20,000 requests for a model of 60 GB, on eight H100."""
    fill(tables(declared(declare)))
    return deployed(deployment.root, {"pool": "H100:8", "engine": {"max_num_seqs": 7}})


def plan(site: Deployment, *asked: str, what_if: bool = False, **limits: float) -> Forecast:
    return forecast(site.job("long"), site, "all", asked, Goal(**limits), what_if=what_if)


def test_each_kind_and_number_of_gpus_has_its_best_plan(site: Deployment) -> None:
    """As if planned alone; the environment's pins are for its own devices."""
    found = plan(site, what_if=True)
    assert all(each.limits.sequences == 7 for each in found.choice.candidates)
    rows = {(each.gpu, each.gpus): each for each in found.what_if}
    assert {"H100", "H200", "A100-80GB", "L4", "B200", "MI300X"} <= {gpu for gpu, _ in rows}
    assert "CPU" not in {gpu for gpu, _ in rows}
    four = rows["H100", 4].best
    alone = plan(site, "H100:4").choice
    exactly = [each for each in alone.candidates if each.layout.gpus == 4]
    assert four is not None
    assert four.seconds <= 1.02 * min(each.seconds for each in exactly)
    small = [each for each in found.what_if if each.gpu == "L4"]
    assert min(each.gpus for each in small) >= 4  # 61 GB of weights, in 24 GB each
    assert found.as_text().count("H200:") >= 4


def test_what_fits_nowhere_is_a_row_with_its_reason(site: Deployment) -> None:
    """Beside those that fit; if none does, the error has the number and what would do."""
    found = plan(site, "L4:2", "H100:2", what_if=True)
    (lacking,) = [each for each in found.what_if if each.best is None]
    assert (lacking.gpu, lacking.gpus) == ("L4", 2)
    assert re.search(r"needs \d+\.\d GB", lacking.lacking or "")
    assert (lacking.lacking or "?") in found.as_text()
    with pytest.raises(PlanError, match="GB") as caught:
        plan(site, "L4:2", what_if=True)
    assert re.search(r"would fit L4:\d+", caught.value.remedy)


def test_a_deadline_that_more_gpus_meet_names_them(site: Deployment) -> None:
    """The nearest plan, the limit, and the plan that would meet it."""
    now = plan(site, "H100:1").choice.best
    limit = now.start_seconds + (now.seconds - now.start_seconds) / 3
    found = plan(site, "H100:1", deadline_seconds=limit)
    assert not found.choice.met
    told = " ".join(found.missed)
    (count,) = map(int, re.findall(r"With (\d+) H100 it would be done", told))
    within = plan(site, f"H100:{count}", deadline_seconds=limit)
    assert within.choice.met
    assert not plan(site, f"H100:{count // 2}", deadline_seconds=limit).choice.met
    assert within.missed == []


def test_a_deadline_that_nothing_meets_says_what_limits(site: Deployment) -> None:
    """Starting takes longer than there is."""
    found = plan(site, "H100:1", deadline_seconds=5.0)
    start = round(found.choice.best.start_seconds)
    assert "No number of H100" in found.missed[-1]
    assert f"{start} s" in found.missed[-1]


def test_a_budget_that_is_too_small_names_the_least(site: Deployment) -> None:
    """And with a deadline, what each of the two costs in terms of the other."""
    known = known_gpus({})
    gpus = {
        name: known[name].model_copy(update={"price_hour": price}) for name, price in PRICES.items()
    }
    environment = site.environment.model_copy(update={"gpus": gpus})
    priced = Deployment(site.root, site.env, environment)
    found = plan(priced, "H100:8", budget=0.01)
    least = min(each.cost or 0.0 for each in found.choice.candidates)
    assert f"{least:.2f}" in found.missed[1]
    by_time = sorted(found.choice.candidates, key=lambda each: each.seconds)
    fastest, cheapest = by_time[0], min(by_time, key=lambda each: each.cost or 0.0)
    assert (fastest.cost or 0) > (cheapest.cost or 0)
    both = plan(
        priced,
        "H100:8",
        deadline_seconds=fastest.seconds * 1.001,
        budget=(cheapest.cost or 0.0) * 1.001,
    )
    told = " ".join(both.missed)
    assert "Within the budget it takes" in told
    assert "In time it costs" in told


def test_the_command_takes_a_time_of_day(site: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table in text and in JSON; a wrong moment and an unknown GPU are told."""
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(site.root))
    asked = ["plan", "long", "--gpu", "H100:4", "--what-if", "--done-by", "2126-01-01T06:00"]
    shown = CliRunner().invoke(main, [*asked, "--json"])
    found = json.loads(shown.stdout)
    assert (shown.exit_code, found["limits_met"]) == (0, True)
    assert [each["gpus"] for each in found["what_if"]] == [1, 2, 4]
    assert all(each["limits_met"] for each in found["what_if"])
    wrong = CliRunner().invoke(main, ["plan", "long", "--done-by", "dawn"])
    assert (wrong.exit_code, "06:00" in wrong.stderr) == (1, True)
    unknown = CliRunner().invoke(main, ["plan", "long", "--gpu", "H1000:1", "--what-if"])
    assert (unknown.exit_code, "Did you mean H100" in unknown.stderr) == (1, True)
