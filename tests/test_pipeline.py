"""The whole way of a row: from the source to exactly one of outputs, rejected, dead letter."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from support import MODEL, Declare, request_line, write_table

from acdc_dagster.backends.local import run_local
from acdc_dagster.backends.progress import Progress
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import BackendError, IncompleteError
from acdc_dagster.inference.events import Event
from acdc_dagster.job import Job
from acdc_dagster.planning.stage import profile, read_plan
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.reconcile.ledger import ledger
from acdc_dagster.reconcile.stage import reconcile
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

pytestmark = pytest.mark.engine

PARTITION = "all"
TablesOf = Callable[[Job], Tables]


def prepare(job: Job, deployment: Deployment, tables: Tables) -> None:
    """Stages 1 to 3."""
    model = deployment.model(job.declared.model)
    take_in(job, deployment, tables, PARTITION)
    sort_requests(model, tables, PARTITION, block_size=32)
    profile(job, deployment, model, tables, PARTITION)


def infer(deployment: Deployment, tables: Tables) -> Progress:
    """Stage 4, as the local backend runs it."""
    plan = read_plan(tables, PARTITION)
    return run_local(plan, tables, deployment, PARTITION, "run", lambda _: None, lambda _: None)


def settings(deployment: Deployment, **changes: Any) -> Deployment:
    """The deployment with other settings of its local backend."""
    path = deployment.root / "resources" / "local.yaml"
    environment = yaml.safe_load(path.read_text())
    environment["backends"]["local"].update(changes)
    path.write_text(yaml.safe_dump(environment))
    return Deployment.load(deployment.root, "local")


def request_job(declare: Declare, lines: list[str]) -> Job:
    """A job over a request file with these lines."""
    attributes = {"source": {"requests": "assets/batch/in.jsonl"}, "model": MODEL}
    return declare("batch", attributes, in_dot_jsonl="\n".join(lines) + "\n")


def test_texts_become_vectors(deployment: Deployment, declare: Declare, tables: TablesOf) -> None:
    """A file of /v1/embeddings runs through all stages, with an engine that pools."""
    texts = {"a": "A plum", "b": "A plum", "c": "A pear", "d": "word " * 3000}
    lines = [
        json.dumps(
            {
                "custom_id": custom_id,
                "method": "POST",
                "url": "/v1/embeddings",
                "body": {"model": MODEL, "input": text},
            }
        )
        for custom_id, text in texts.items()
    ]
    job = request_job(declare, lines)
    job_tables = tables(job)
    prepare(job, deployment, job_tables)
    assert read_plan(job_tables, PARTITION).engine.runner == "pooling"
    assert infer(deployment, job_tables).done == 2
    reconcile(job, job_tables, PARTITION)
    results = job_tables.read("inference", PARTITION)
    assert [len(vector) for vector in results["embedding"]] == [576, 576]
    outputs = job_tables.read("outputs", PARTITION)
    assert dict(outputs.select("custom_id", "status").iter_rows()) == dict.fromkeys("abc", "ok")
    assert ledger(job_tables, PARTITION).balanced


def test_every_row_of_a_request_file_ends_in_exactly_one_table(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """Input rows = outputs + rejected + dead letter, and a second run computes nothing."""
    nonsense = {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}
    circular = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
    lines = [
        request_line("first", "What is the capital of Japan?", max_tokens=16),
        request_line("same", "What is the capital of Japan?", max_tokens=16),
        request_line("twice", "Name a colour."),
        request_line("twice", "Name a colour."),
        request_line("cut", "Tell me a long story.", max_tokens=2),
        request_line("sampled-1", "Name a fruit.", temperature=1.0),
        request_line("sampled-2", "Name a fruit.", temperature=1.0),
        request_line("refused", "Hello", response_format=nonsense),
        request_line("given-up", "Hello", response_format=circular),
        request_line("long", "word " * 3000),
        request_line(7),
        '{"custom_id": "half',
        "",
    ]
    job = request_job(declare, lines)
    job_tables = tables(job)
    prepare(job, deployment, job_tables)
    first = infer(deployment, job_tables)
    stats = reconcile(job, job_tables, PARTITION)

    outputs = job_tables.read("outputs", PARTITION)
    by_id = {row["custom_id"]: row for row in outputs.iter_rows(named=True)}
    rejected = job_tables.read("rejected", PARTITION)
    dead = job_tables.read("dead_letter", PARTITION)
    assert sorted(by_id) == ["cut", "first", "same", "sampled-1", "sampled-2", "twice"]
    assert outputs.height == 6
    assert set(rejected["line"]) == {10, 11, 12}
    assert dead["custom_id"].to_list() == ["refused", "given-up"]
    assert set(dead["error_class"]) == {"permanent"}
    assert all(dead["remedy"])
    input_rows = len([line for line in lines if line])
    assert outputs["input_rows"].sum() + rejected.height + dead.height == input_rows
    assert ledger(job_tables, PARTITION).balanced
    assert stats.ledger.input_rows == input_rows

    assert "Tokyo" in by_id["first"]["text"]
    assert by_id["first"]["text"] == by_id["same"]["text"]
    assert by_id["first"]["request_hash"] == by_id["same"]["request_hash"]
    assert by_id["sampled-1"]["request_hash"] != by_id["sampled-2"]["request_hash"]
    assert by_id["twice"]["input_rows"] == 2
    assert (by_id["cut"]["status"], by_id["cut"]["error_class"]) == ("failed", "truncated")
    assert by_id["cut"]["completion_tokens"] == 2
    assert first.computed == first.total == 7

    again = infer(deployment, job_tables)
    assert (again.computed, again.done) == (0, first.total)
    reconcile(job, job_tables, PARTITION)
    again_outputs = job_tables.read("outputs", PARTITION)
    assert again_outputs.sort("line").equals(outputs.sort("line"))


def test_answers_become_typed_columns(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """A table, a prompt and a schema give columns with types, by custom_id; cut answers do not."""
    rows = [{"id": f"p{n}", "title": f"Wooden train number {n}"} for n in range(4)]
    write_table(deployment.root / "products", rows)
    schema = {
        "type": "object",
        "properties": {
            "toy": {"type": "boolean"},
            "kind": {"type": "string", "enum": ["train", "car"]},
            "words": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "required": ["toy", "kind", "words"],
        "additionalProperties": False,
    }
    attributes: dict[str, Any] = {
        "source": {"table": "products", "id_column": "id"},
        "model": MODEL,
        "sampling": {"max_tokens": 40},
        "answer_schema": schema,
    }
    job = declare("toys", attributes, prompt_dot_md="Describe: {{ title }}")
    job_tables = tables(job)
    prepare(job, deployment, job_tables)
    infer(deployment, job_tables)
    reconcile(job, job_tables, PARTITION)
    outputs = job_tables.read("outputs", PARTITION)
    assert outputs["custom_id"].to_list() == ["p0", "p1", "p2", "p3"]
    assert outputs.schema["toy"] == pl.Boolean
    assert set(outputs["kind"]) <= {"train", "car"}
    assert all(isinstance(json.loads(words), list) for words in outputs["words"])
    assert set(outputs["status"]) == {"ok"}

    attributes["sampling"] = {"max_tokens": 3}
    job = declare("toys", attributes)
    prepare(job, deployment, job_tables)
    infer(deployment, job_tables)
    reconcile(job, job_tables, PARTITION)
    assert job_tables.count("outputs", PARTITION) == 0
    assert set(job_tables.read("dead_letter", PARTITION)["error_class"]) == {"truncated"}
    assert ledger(job_tables, PARTITION).balanced


@contextmanager
def worker(deployment: Deployment, tables: Tables) -> Iterator[subprocess.Popen[str]]:
    """`acdc worker` on the only shard, with an open standard input."""
    environment = deployment.environment.backends.local.env
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "acdc_dagster.cli", "worker", "--stop-with-parent"),
            *("--tables", tables.root, "--job", tables.job, "--partition", PARTITION),
            *("--shard", "0"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_rows(tables: Tables, process: subprocess.Popen[str]) -> pl.DataFrame:
    """What `inference` holds once it holds anything."""
    while (rows := tables.read("inference", PARTITION)).is_empty():
        assert process.poll() is None, "the worker ended before its first chunk"
        time.sleep(0.1)
    return rows


def many(count: int) -> list[str]:
    """Requests that keep the engine busy for a while."""
    return [
        request_line(f"r{n}", f"Write about the number {n}.", max_tokens=24) for n in range(count)
    ]


def test_a_killed_worker_loses_no_committed_chunk(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """After kill -9 in mid-run a re-run leaves no hole and no duplicate, and computes the rest."""
    deployment = settings(deployment, commit={"rows": 4, "seconds": 60})
    job = request_job(declare, many(60))
    job_tables = tables(job)
    prepare(job, deployment, job_tables)
    with worker(deployment, job_tables) as process:
        wait_for_rows(job_tables, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = job_tables.read("inference", PARTITION)
    assert 0 < kept.height < 60
    with pytest.raises(IncompleteError, match="have no result"):
        reconcile(job, job_tables, PARTITION)

    progress = infer(deployment, job_tables)

    results = job_tables.read("inference", PARTITION)
    wanted = job_tables.read("sorted_requests", PARTITION)["request_hash"]
    assert sorted(results["request_hash"]) == sorted(wanted)
    assert progress.computed == 60 - kept.height
    first = results.join(kept.select("request_hash"), on="request_hash", how="semi")
    assert first.sort("request_hash").equals(kept.sort("request_hash"))
    reconcile(job, job_tables, PARTITION)
    assert sorted(job_tables.read("outputs", PARTITION)["custom_id"]) == sorted(
        f"r{n}" for n in range(60)
    )


# Times that something is killed; 50 take a quarter of an hour.
KILLS = int(os.environ.get("ACDC_KILLS", "2"))


def engine_of(worker_pid: int) -> int | None:
    """The process of a worker's engine, once it is there."""
    children = Path(f"/proc/{worker_pid}/task/{worker_pid}/children").read_text().split()
    return int(children[0]) if children else None


def is_alive(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_random_kills_of_worker_and_engine_leave_one_result_each(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """At whatever moment: no hole, no duplicate, little done twice, and no engine without worker.

    The tokens made over all lives are at most 1.1 of those of the answers, which is what a run that
    nobody disturbs makes, and what was at risk: for each kill what ran, for each kill of a worker
    the chunk that was not committed and those on their way. Tokens of the last seconds before a
    kill are told by nobody.
    """
    count, tokens, rows, at_once = 60 + 20 * KILLS, 24, 8, 32
    deployment = settings(deployment, commit={"rows": rows, "seconds": 5})
    job = request_job(declare, many(count))
    job_tables = tables(job)
    prepare(job, deployment, job_tables)
    chosen = random.Random(7)
    generated, kills, worker_kills = 0, 0, 0
    while True:
        last, engines, began = Event("loading", 0), set[int](), time.monotonic()
        start = 0.0
        with worker(deployment, job_tables) as process:
            assert process.stdout is not None
            end = threading.Timer(0, lambda: None)

            def kill(victim: subprocess.Popen[str] = process) -> None:
                nonlocal kills, worker_kills
                engine = engine_of(victim.pid)
                of_worker = engine is None or chosen.random() < 0.5
                kills, worker_kills = kills + 1, worker_kills + of_worker
                os.kill(victim.pid if of_worker else engine, signal.SIGKILL)

            for line in process.stdout:
                last = Event.parse(line) or last
                if last.kind in ("running", "progress"):
                    engines.add(engine_of(process.pid) or 0)  # 0 is nobody's
                    # As long as it took to start, so that a slow machine does some work too.
                    start = start or time.monotonic() - began
                    if kills < KILLS and not end.is_alive():
                        end = threading.Timer(chosen.uniform(0.0, start), kill)
                        end.start()
            end.cancel()
            code = process.wait(60)
        for _ in range(100):
            if not any(map(is_alive, engines)):
                break
            time.sleep(0.1)
        else:
            pytest.fail("an engine outlives its worker")
        generated += last.generated_tokens
        if code == 0:
            break
        assert code == -signal.SIGKILL, last
    assert kills > 0
    results = job_tables.read("inference", PARTITION)
    wanted = job_tables.read("sorted_requests", PARTITION)["request_hash"]
    assert sorted(results["request_hash"]) == sorted(wanted)
    assert results["error_class"].null_count() == count
    at_risk = tokens * (kills * at_once + worker_kills * 2 * (rows + at_once))
    assert generated <= 1.1 * results["completion_tokens"].sum() + at_risk


def test_a_worker_whose_parent_dies_commits_and_stops(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """When standard input closes, finished answers are committed and the exit code says so."""
    deployment = settings(deployment, commit={"rows": 10_000, "seconds": 3600})
    job = request_job(declare, many(400))
    job_tables = tables(job)
    prepare(job, deployment, job_tables)
    with worker(deployment, job_tables) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        for line in process.stdout:
            if json.loads(line)["computed"]:
                break
        process.stdin.close()
        assert process.wait(60) == 3
    assert 0 < job_tables.count("inference", PARTITION) < 400


def limit_files(process: subprocess.Popen[str], most: int) -> None:
    """Refuse what a worker writes to files beyond so many bytes each, as a full disk does."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def until(process: subprocess.Popen[str], wanted: Callable[[Event], bool]) -> Event:
    """The worker's next event of this kind."""
    assert process.stdout is not None
    for line in process.stdout:
        event = Event.parse(line)
        if event is not None and wanted(event):
            return event
    pytest.fail("the worker ended before")


def test_a_full_disk_is_told_and_costs_nothing_that_was_committed(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """With room again the worker goes on; told to stop without any, it says what it could not do.

    What it had committed is readable all the time, and the next run computes the rest.
    """
    deployment = settings(deployment, commit={"rows": 8, "seconds": 60})
    job = request_job(declare, many(200))
    job_tables = tables(job)
    prepare(job, deployment, job_tables)
    with worker(deployment, job_tables) as process:
        wait_for_rows(job_tables, process)
        limit_files(process, 1)
        told = until(process, lambda event: bool(event.trouble))
        assert "Could not write" in told.trouble
        kept = job_tables.count("inference", PARTITION)
        assert 0 < kept < 200
        limit_files(process, resource.RLIM_INFINITY)
        until(process, lambda event: event.computed > told.computed and not event.trouble)
        assert job_tables.count("inference", PARTITION) > kept
        limit_files(process, 1)
        until(process, lambda event: bool(event.trouble))
        process.send_signal(signal.SIGTERM)
        failed = until(process, lambda event: event.kind == "failed")
        assert process.wait(60) == 1
    assert job_tables.root in failed.problem
    assert "run the partition again" in failed.remedy
    committed = job_tables.read("inference", PARTITION)
    progress = infer(deployment, job_tables)
    assert progress.computed == 200 - committed.height > 0
    wanted = job_tables.read("sorted_requests", PARTITION)["request_hash"]
    results = job_tables.read("inference", PARTITION)
    assert sorted(results["request_hash"]) == sorted(wanted)
    assert set(results["error_class"]) == {None}


def test_an_engine_that_does_not_start_says_why(
    deployment: Deployment, declare: Declare, tables: TablesOf, tmp_path: Path, model_path: Path
) -> None:
    """A model folder without weights fails the run with the engine's words and a remedy."""
    job = request_job(declare, [request_line()])
    job_tables = tables(job)
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (broken / name).write_bytes((model_path / name).read_bytes())
    path = deployment.root / "resources" / "local.yaml"
    environment = yaml.safe_load(path.read_text())
    environment["models"][MODEL]["path"] = str(broken)
    path.write_text(yaml.safe_dump(environment))
    deployment = Deployment.load(deployment.root, "local")
    prepare(job, deployment, job_tables)
    with pytest.raises(BackendError, match="does not start") as failure:
        infer(deployment, job_tables)
    assert str(broken) in failure.value.problem
    assert failure.value.remedy
    assert job_tables.count("inference", PARTITION) == 0


def test_a_source_without_rows_succeeds_with_empty_tables(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """An empty file runs through all stages; no engine starts."""
    job = request_job(declare, [""])
    job_tables = tables(job)
    prepare(job, deployment, job_tables)
    assert infer(deployment, job_tables).total == 0
    stats = reconcile(job, job_tables, PARTITION)
    assert (stats.outputs, stats.ledger.input_rows) == (0, 0)
