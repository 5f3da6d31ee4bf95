"""Which answers serve a request again, and what `reuse: off` changes."""

from support import Declare
from support_outputs import STOP, Lineage, lineage

from acdc_dagster.deployment import Deployment
from acdc_dagster.inference.left import left_of
from acdc_dagster.planning.stage import read_plan
from acdc_dagster.prices import Prices
from acdc_dagster.reconcile.costs import RunCosts
from acdc_dagster.reconcile.run_record import record_run

ROWS = [
    {"id": f"{day}-{n}", "day": day, "text": text} for day in "12" for n, text in enumerate("aab")
]


def left(made: Lineage, day: str) -> int:
    """Requests of a day that a worker would compute now."""
    return left_of(made.tables, day, read_plan(made.tables, day).shards[0]).requests


def finish(made: Lineage, day: str, run: str) -> None:
    """Stage 5 of a run, and its record."""
    stats = made.reconcile(day)
    record_run(made.job, made.tables, day, run, RunCosts.of(made.tables, Prices()), stats)


def test_each_run_computes_anew_and_once(deployment: Deployment, declare: Declare) -> None:
    """No other day's answers and none of an earlier run; but those of a run that broke off."""
    made = lineage(deployment, declare, ROWS, prompt="Count {{ text }}", reuse=False)
    made.prepare("1")
    assert left(made, "1") == 2  # rows that ask the same still share an answer
    made.results({"1-0": {**STOP, "text": "1"}}, "1", run="broke off")
    made.prepare("1")
    assert left(made, "1") == 1
    made.results({"1-2": {**STOP, "text": "2"}}, "1", run="first")
    finish(made, "1", "first")
    made.prepare("2")
    assert left(made, "2") == 2
    made.prepare("1")
    assert left(made, "1") == 2
    made.results({f"1-{n}": {**STOP, "text": "new"} for n in (0, 2)}, "1", run="second", minute=1)
    finish(made, "1", "second")
    assert set(made.outputs("text", "reused", partition="1").values()) == {("new", False)}


def test_answers_are_taken_over_if_nothing_is_declared(
    deployment: Deployment, declare: Declare
) -> None:
    """By another day, and by a run after one that ended."""
    made = lineage(deployment, declare, ROWS, prompt="Count {{ text }}")
    made.prepare("1")
    made.results({f"1-{n}": {**STOP, "text": "1"} for n in (0, 2)}, "1")
    finish(made, "1", "first")
    for day in "12":
        made.prepare(day)
        assert left(made, day) == 0
