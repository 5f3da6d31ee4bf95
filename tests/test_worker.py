"""The worker with engines in real processes that die, hang, or do not start.

The engines are simulated; tests/test_pipeline.py has the real one.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hurt_engines import HANGS, KILLS
from support import REPOSITORY

from acdc_dagster.deployment import Commit, Limits
from acdc_dagster.errors import BackendError, ShardTakenError
from acdc_dagster.inference.engines.process import Stopped
from acdc_dagster.inference.events import Event
from acdc_dagster.inference.worker import WorkOrder, work
from acdc_dagster.planning.plan import Plan
from acdc_dagster.prices import Prices
from acdc_dagster.reconcile.costs import RunCosts
from acdc_dagster.schemas import row_schema
from acdc_dagster.tables import Appender, TableError, Tables
from benchmarks.recorded import simulated_plan

PARTITION = "p"
RECORDED = "benchmarks.recorded:RecordedEngine"
ENGINES = "hurt_engines:"


@pytest.fixture(autouse=True)
def adapters_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine's process too."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), f"{REPOSITORY / 'tests'}"]))


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(str(tmp_path / "tables"), "job")


def fill(
    tables: Tables, count: int, max_tokens: int = 4, harm: dict[int, int] | None = None
) -> None:
    """Sorted requests; some whose first token does harm."""
    first = [(harm or {}).get(n, 1) for n in range(count)]
    rows = pl.DataFrame(
        {
            "position": range(count),
            "request_hash": [f"{n:032x}" for n in range(count)],
            "token_ids": [token.to_bytes(2, "little") for token in first],
            "prompt_tokens": [1] * count,
            "lcp": [0] * count,
            "max_tokens": [max_tokens] * count,
            "sampling": [json.dumps({"max_tokens": max_tokens})] * count,
            "images": [[]] * count,
            "image_tokens": [0] * count,
        }
    )
    tables.replace("sorted_requests", PARTITION, rows)


def plan_of(count: int, extra: dict[str, Any] | None = None, **limits: Any) -> Plan:
    commit = Commit(rows=limits.pop("rows", 7), seconds=60)
    return simulated_plan(
        count, extra or {}, max_num_seqs=4, commit=commit, limits=Limits(**limits)
    )


def run(
    tables: Tables,
    plan: Plan,
    adapter: str = RECORDED,
    stop: threading.Event | None = None,
    tell: Callable[[Event], None] = lambda _: None,
) -> Event:
    order = WorkOrder(PARTITION, 0, "run")
    return work(order, plan, tables, tell, stop or threading.Event(), adapter)


def results(tables: Tables) -> dict[str, str | None]:
    """request_hash → error class; each is there once."""
    rows = tables.read("inference", PARTITION)
    assert rows["request_hash"].is_unique().all()
    return dict(rows.select("request_hash", "error_class").iter_rows())


def test_a_shard_is_answered_once_and_its_run_remembered(tables: Tables) -> None:
    """A second run finds nothing to do; what the first measured is in history."""
    fill(tables, 50)
    told: list[Event] = []
    finished = run(tables, plan_of(50), tell=told.append)
    assert results(tables) == {f"{n:032x}": None for n in range(50)}
    assert [event.kind for event in told][:2] == ["loading", "running"]
    assert (finished.kind, finished.done, finished.total) == ("finished", 50, 50)
    assert (finished.computed, finished.completion_tokens) == (50, 200)
    assert finished.generated_tokens == 200
    again = run(tables, plan_of(50))
    assert (again.computed, again.done) == (0, 50)
    (row,) = tables.read("history", PARTITION).iter_rows(named=True)
    assert (row["requests"], row["completion_tokens"], row["restarts"]) == (50, 200, 0)
    assert (row["engine"], row["device"]) == ("recorded 1", "simulated")
    assert json.loads(row["settings"])["max_num_seqs"] == 4
    assert 0 < row["batch_fill"] <= 1
    assert row["ended"] == "complete"


def test_a_request_that_kills_the_engine_costs_only_itself(tables: Tables) -> None:
    """It is given up, with the reason; all others have their answers."""
    fill(tables, 60, harm={20: KILLS, 59: KILLS})
    finished = run(tables, plan_of(60), ENGINES + "FragileEngine")
    found = results(tables)
    given_up = {name for name, fault in found.items() if fault is not None}
    assert given_up == {f"{20:032x}", f"{59:032x}"}
    assert len(found) == 60
    assert finished.failed == 2
    assert 4 <= finished.restarts <= 12
    failed = tables.read("inference", PARTITION).filter(pl.col("error_class").is_not_null())
    assert set(failed["error_class"]) == {"permanent"}
    assert all("signal 9" in message for message in failed["error_message"])


def test_a_request_that_hangs_the_engine_is_found_as_well(
    tables: Tables, capfd: pytest.CaptureFixture[str]
) -> None:
    """A step without end counts as a death, and the log shows where it hung."""
    fill(tables, 12, harm={5: HANGS})
    run(tables, plan_of(12, stall_seconds=1.5), ENGINES + "FragileEngine")
    found = results(tables)
    assert {name for name, fault in found.items() if fault} == {f"{5:032x}"}
    assert len(found) == 12
    assert "hurt_engines.py" in capfd.readouterr().err


def test_an_engine_that_dies_too_often_fails_the_worker(tables: Tables) -> None:
    """What was answered stays; the message has the cause and a remedy."""
    fill(tables, 40, harm=dict.fromkeys(range(20, 40), KILLS))
    with pytest.raises(BackendError, match="died 3 times") as failure:
        run(tables, plan_of(40, engine_restarts=2, rows=1), ENGINES + "FragileEngine")
    assert "engine_restarts" in failure.value.remedy
    assert set(results(tables).values()) == {None}
    assert len(results(tables)) <= 20
    (row,) = tables.read("history", PARTITION).iter_rows(named=True)
    assert (row["ended"], row["restarts"]) == ("failed", 3)


def test_an_engine_that_dies_at_its_start_fails_at_once_with_its_last_words(
    tables: Tables,
) -> None:
    """No retry: the model or the settings are wrong, and a person has to look."""
    fill(tables, 3)
    with pytest.raises(BackendError, match="the card has fallen off the bus"):
        run(tables, plan_of(3), ENGINES + "UnstartableEngine")
    with pytest.raises(BackendError, match="did not start within 1 s"):
        run(tables, plan_of(3, start_seconds=1.0), ENGINES + "HangingStartEngine")


def test_an_engine_that_ran_before_is_started_again_more_than_once(
    tables: Tables, tmp_path: Path
) -> None:
    """After a death, memory may not be free at once."""
    fill(tables, 20)
    plan = plan_of(20, {"log": str(tmp_path / "starts")})
    told: list[Event] = []
    finished = run(tables, plan, ENGINES + "OnceStartedEngine", tell=told.append)
    assert len(results(tables)) == 20
    assert finished.restarts == 1
    assert (tmp_path / "starts").read_text().count("start") == 4
    assert any("signal 6" in event.trouble for event in told)


def test_a_request_that_takes_too_long_is_given_up(tables: Tables) -> None:
    """The others are not held up by it."""
    fill(tables, 4, max_tokens=10**6)
    finished = run(tables, plan_of(4, {"step_seconds": 0.01}, request_seconds=1.0))
    assert set(results(tables).values()) == {"transient"}
    assert finished.failed == 4


def test_when_told_to_stop_running_requests_end_and_the_rest_waits(tables: Tables) -> None:
    """What runs has the grace period; nothing new begins; the next run does only the rest."""
    fill(tables, 100, max_tokens=20)
    stop = threading.Event()
    extra = {"step_seconds": 0.02}

    def tell(event: Event) -> None:
        if event.kind == "running":
            stop.set()

    with pytest.raises(Stopped):
        run(tables, plan_of(100, extra), stop=stop, tell=tell)
    assert len(results(tables)) <= 8
    stop = threading.Event()

    def tell_in_mid_work(event: Event) -> None:
        if event.kind == "progress" and event.computed:
            stop.set()

    with pytest.raises(Stopped):
        run(tables, plan_of(100, {"step_seconds": 0.05}), stop=stop, tell=tell_in_mid_work)
    some = results(tables)
    assert 0 < len(some) < 100
    history = tables.read("history", PARTITION)
    assert set(history["ended"]) == {"stopped"}
    assert history["requests"].sum() == len(some)
    finished = run(tables, plan_of(100))
    assert finished.computed == 100 - len(some)
    assert len(results(tables)) == 100


def test_the_newest_worker_takes_the_shard_over(tables: Tables) -> None:
    """The one before is refused at its next commit; no result is there twice."""
    fill(tables, 60, max_tokens=5)
    refused: list[Exception] = []
    running = threading.Event()

    def older() -> None:
        try:
            run(
                tables,
                plan_of(60, {"step_seconds": 0.1}),
                tell=lambda event: running.set() if event.kind == "running" else None,
            )
        except ShardTakenError as error:
            refused.append(error)

    thread = threading.Thread(target=older)
    thread.start()
    assert running.wait(60)
    finished = run(tables, plan_of(60))
    thread.join()
    assert len(results(tables)) == 60
    assert finished.done == 60
    assert "taken over" in str(refused[0])


def test_commits_are_tried_again_while_the_storage_refuses(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine works on, the worker says what goes wrong, and nothing is lost."""
    fill(tables, 40)
    refusals = iter(range(3))
    append = Appender.append

    def refusing(self: Any, rows: Any) -> None:
        if self._app_id.startswith("acdc/") and next(refusals, None) is not None:
            raise TableError("No space left on device.", "Make room.")
        append(self, rows)

    monkeypatch.setattr(Appender, "append", refusing)
    run(tables, plan_of(40))
    assert len(results(tables)) == 40


def test_a_storage_that_refuses_for_good_fails_the_worker(tables: Tables) -> None:
    """With the storage's own words, after the declared time; the next run does the rest."""
    fill(tables, 40, max_tokens=20)
    log = Path(tables.uri("inference")) / "_delta_log"

    def tell(event: Event) -> None:
        if event.kind == "running":
            log.rename(log.with_name("gone"))
            log.write_text("no folder")

    plan = plan_of(40, {"step_seconds": 0.01}, storage_seconds=1.0)
    with pytest.raises(TableError, match="Could not write"):
        run(tables, plan, tell=tell)
    log.unlink()
    log.with_name("gone").rename(log)
    run(tables, plan)
    assert len(results(tables)) == 40


@pytest.mark.parametrize("moment", ["before", "between"])
def test_a_crash_around_a_commit_costs_that_chunk_only(
    tables: Tables, tmp_path: Path, moment: str
) -> None:
    """Killed when results are computed and not committed, or written and not committed yet."""
    fill(tables, 40)
    plan = plan_of(40, rows=40)
    file = tmp_path / "plan.json"
    file.write_text(plan.model_dump_json())
    crashed = [sys.executable, str(REPOSITORY / "tests" / "crashing_worker.py")]
    for _ in range(20):
        ended = subprocess.run([*crashed, tables.root, str(file), moment], check=False)
        assert ended.returncode == -signal.SIGKILL
        written = list(Path(tables.uri("inference")).rglob("*.parquet"))
        committed = tables.count("inference", PARTITION)
        if committed == 0 and bool(written) == (moment == "between"):
            break
        tables.replace("inference", PARTITION, pl.DataFrame(schema=row_schema("inference")))
        for path in Path(tables.uri("inference")).rglob("*.parquet"):
            path.unlink()
    else:
        pytest.fail("no crash came between the data file and the commit")
    finished = run(tables, plan)
    assert finished.computed == 40
    assert len(results(tables)) == 40


def test_a_killed_worker_has_its_row_in_history(tables: Tables, tmp_path: Path) -> None:
    """Of what it had committed, written once by the next worker of its shard, with its cost."""
    fill(tables, 40)
    plan = plan_of(40, {"step_seconds": 0.02})
    file = tmp_path / "plan.json"
    file.write_text(plan.model_dump_json())
    crashed = [sys.executable, str(REPOSITORY / "tests" / "crashing_worker.py")]
    ended = subprocess.run([*crashed, tables.root, str(file), "after"], check=False)
    assert ended.returncode == -signal.SIGKILL
    kept = tables.read("inference", PARTITION)
    assert 0 < kept.height < 40
    assert tables.count("history", PARTITION) == 0
    for _ in range(2):
        run(tables, plan)
    killed, complete = tables.read("history", PARTITION).sort("ended", descending=True).to_dicts()
    assert (killed["ended"], complete["ended"]) == ("killed", "complete")
    assert killed["requests"] == kept.height == 40 - complete["requests"]
    assert killed["completion_tokens"] == kept["completion_tokens"].sum()
    assert (killed["engine"], killed["device"]) == ("recorded 1", None)
    took = kept["finished_at"].max() - kept["started_at"].min()  # type: ignore[operator]
    assert killed["seconds"] == pytest.approx(took.total_seconds())
    assert killed["seconds"] > 0
    costs = RunCosts.of(tables, Prices(device_hour=3600.0))
    assert costs.total(PARTITION) == pytest.approx(killed["seconds"] + complete["seconds"])


def test_a_second_attempt_does_what_is_in_retries(tables: Tables) -> None:
    """With a number of its own, whatever the first one left; once."""
    fill(tables, 3)
    run(tables, plan_of(3))
    again = tables.read("sorted_requests", PARTITION).filter(pl.col("position") < 2)
    rows = again.with_columns(attempt=2, shard=0, error_class=pl.lit("parse"))
    tables.replace("retries", PARTITION, rows.drop("partition_key"))
    order = WorkOrder(PARTITION, 0, "run", attempt=2)
    for computed in (2, 0):
        finished = work(order, plan_of(2), tables, lambda _: None, threading.Event(), RECORDED)
        assert finished.computed == computed
    attempts = tables.read("inference", PARTITION).sort("attempt", "request_hash")
    assert attempts["attempt"].to_list() == [1, 1, 1, 2, 2]
