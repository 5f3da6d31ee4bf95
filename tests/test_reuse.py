"""Which answers serve a request again, and what `reuse: off` changes."""

import threading

import pytest
from support import REPOSITORY, Declare, write_table
from support_outputs import PARTITION, STOP, Lineage, lineage

from acdc_dagster.deployment import Deployment
from acdc_dagster.inference.events import Event
from acdc_dagster.inference.left import left_of
from acdc_dagster.inference.worker import WorkOrder, work
from acdc_dagster.planning.stage import read_plan
from acdc_dagster.prices import Prices
from acdc_dagster.reconcile.costs import RunCosts
from acdc_dagster.reconcile.run_record import record_run
from acdc_dagster.reconcile.stage import reconcile

RECORDED = "benchmarks.recorded:RecordedEngine"

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


def worked(made: Lineage, run: str) -> Event:
    """A worker's run over the partition, with a real engine process that is simulated inside."""
    order = WorkOrder(PARTITION, 0, run)
    plan = read_plan(made.tables, PARTITION)
    return work(order, plan, made.tables, lambda _: None, threading.Event(), RECORDED)


def test_a_night_computes_what_changed(
    deployment: Deployment, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 rows six changed, 3 %: the worker counts six requests, the outputs six new answers."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # for the engine's process
    rows = [{"id": f"r{n}", "text": f"number {n}"} for n in range(200)]
    made = lineage(deployment, declare, rows, prompt="Count {{ text }}", sampling={"max_tokens": 2})
    made.prepare()
    assert worked(made, "first").computed == 200
    assert made.reconcile().outputs == 200
    changed = {f"r{n}" for n in range(5, 200, 35)}
    assert len(changed) == 6
    rows = [
        {"id": row["id"], "text": f"{row['text']} again" if row["id"] in changed else row["text"]}
        for row in rows
    ]
    write_table(deployment.root / "rows", rows)
    made.prepare()
    night = worked(made, "second")
    assert (night.computed, night.done, night.total) == (6, 200, 200)
    stats = reconcile(made.job, made.tables, PARTITION, run_id="second")
    assert stats.ledger.balanced
    assert stats.savings.reused.rows == 194
    reused = made.outputs("reused")
    assert {name for name, was_there in reused.items() if not was_there} == changed
    assert worked(made, "third").computed == 0
