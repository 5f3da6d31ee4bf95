"""`acdc plan` on a really prepared partition, and the lengths that it expects."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from support import MODEL, Declare, write_table

from acdc_dagster.cli import main
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, IncompleteError
from acdc_dagster.job import Job
from acdc_dagster.planning.choice import Goal
from acdc_dagster.planning.forecast import forecast
from acdc_dagster.planning.plan import Shard
from acdc_dagster.planning.shapes.model import read_shape
from acdc_dagster.planning.shards import request_cost
from acdc_dagster.planning.stage import profile
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]
DAYS = ["2026-11-02", "2026-11-03"]


@pytest.fixture
def job(deployment: Deployment, declare: Declare) -> Job:
    """Two days of sixty rows, with a prompt that all share."""
    rows = [{"id": f"{day}-{row}", "day": day} for day in DAYS for row in range(60)]
    write_table(deployment.root / "rows", rows)
    attributes = {
        "source": {"table": "rows", "id_column": "id", "partition_column": "day"},
        "model": MODEL,
        "sampling": {"max_tokens": 200},
        "partitions": {"cadence": "daily", "start": DAYS[0], "end": "2026-11-04"},
    }
    prompt = "Say in a few words what is the matter. " * 20 + "{{ id }}"
    return declare("matters", attributes, prompt_dot_md=prompt)


def prepare(job: Job, deployment: Deployment, tables: Tables, partition: str) -> None:
    """Stages 1 and 2."""
    take_in(job, deployment, tables, partition)
    sort_requests(deployment.model(MODEL), tables, partition, block_size=32)


def test_a_prepared_partition_is_planned_without_a_gpu(
    job: Job, deployment: Deployment, tables: TablesOf
) -> None:
    """The lengths are the table's, each candidate fits the pool, and the winner is the fastest."""
    prepare(job, deployment, tables(job), DAYS[1])
    found = forecast(job, deployment, DAYS[1], ["H100:8", "l4:2"], Goal())
    lengths = tables(job).read("sorted_requests", DAYS[1])["prompt_tokens"]
    assert (found.requests, found.prompts.sum) == (60, lengths.sum())
    assert found.prompts.max == lengths.max()
    assert 0.8 < found.hit_rate <= found.sharing
    assert (found.answers.max, found.answers_cut) == (200, None)
    assert {str(each.pool) for each in found.choice.candidates} == {"H100:8", "L4:2"}
    fastest = min(each.seconds for each in found.choice.candidates)
    assert found.choice.best.seconds <= 1.02 * fastest
    assert str(found.choice.best.layout) in found.plan.why[0]


def test_the_command_prints_a_table_or_json(
    job: Job, deployment: Deployment, tables: TablesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same figures in both; the exit code says whether the limits are met."""
    prepare(job, deployment, tables(job), DAYS[1])
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    asked = ["plan", "matters", "--partition", DAYS[1], "--gpu", "H100:4"]
    shown = CliRunner().invoke(main, asked)
    assert shown.exit_code == 0
    found = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    best = found["best"]
    layout = f"T{best['tensor']}-D{best['data']}"
    assert f"* {layout}" in shown.stdout
    assert len(found["candidates"]) == len({json.dumps(each) for each in found["candidates"]})
    assert all(each["gpus"] <= 4 for each in found["candidates"])
    assert found["why"][0] in shown.stdout
    late = CliRunner().invoke(main, [*asked, "--within", "0.0001"])
    assert (late.exit_code, "No layout meets the limits" in late.stdout) == (1, True)
    here = CliRunner().invoke(main, asked[:4])
    assert "CPU:1" in here.stdout


def test_what_cannot_be_planned_is_told(job: Job, deployment: Deployment, tables: TablesOf) -> None:
    """A partition that is not prepared names those that are; a GPU that is unknown, those known."""
    prepare(job, deployment, tables(job), DAYS[1])
    with pytest.raises(IncompleteError, match=f"{DAYS[0]}.*Prepared are: {DAYS[1]}"):
        forecast(job, deployment, DAYS[0], ["H100:1"], Goal())
    with pytest.raises(DeclarationError, match="H1000"):
        forecast(job, deployment, DAYS[1], ["H1000:1"], Goal())


def cut_in_two(
    job: Job, deployment: Deployment, tables: Tables, lengths: list[int], caps: list[int]
) -> list[Shard]:
    """The shards of two replicas for prompts that share nothing."""
    rows = len(lengths)
    tables.replace(
        "sorted_requests",
        DAYS[0],
        pl.DataFrame(
            {
                "position": range(rows),
                "request_hash": [str(row) for row in range(rows)],
                "token_ids": [b""] * rows,
                "prompt_tokens": lengths,
                "lcp": [0] * rows,
                "max_tokens": caps,
                "sampling": ["{}"] * rows,
                "images": [[]] * rows,
                "image_tokens": [0] * rows,
            }
        ).cast({"prompt_tokens": pl.Int32, "lcp": pl.Int32, "max_tokens": pl.Int32}),
    )
    environment = deployment.environment
    local = environment.backends.local.model_copy(update={"replicas": 2})
    backends = environment.backends.model_copy(update={"local": local})
    two = replace(deployment, environment=environment.model_copy(update={"backends": backends}))
    return profile(job, two, deployment.model(MODEL), tables, DAYS[0]).plan.shards


def test_shards_are_cut_by_the_jobs_own_model(
    job: Job, deployment: Deployment, tables: TablesOf
) -> None:
    """The cut is that of request_cost with the model's attention weight, not with another's."""
    lengths = np.sort(np.array([6000, 60, 60, 60] * 100))
    shards = cut_in_two(job, deployment, tables(job), lengths.tolist(), [200] * 400)
    weight = read_shape(deployment.model(MODEL).path).attention_weight
    cost = request_cost(lengths, np.zeros(400, np.int64), 200, attention_weight=weight)
    halves = [cost[shard.start : shard.stop].sum() for shard in shards]
    assert max(halves) / cost.sum() < 0.55
    # An 8 B model's weight sees the long prompts as cheaper, and would cut elsewhere.
    other = request_cost(lengths, np.zeros(400, np.int64), 200)
    ours = int(np.searchsorted(np.cumsum(cost), cost.sum() / 2))
    theirs = int(np.searchsorted(np.cumsum(other), other.sum() / 2))
    assert ours != theirs
    assert abs(shards[0].stop - ours) < abs(shards[0].stop - theirs)


def test_shards_are_cut_by_what_each_request_may_answer(
    job: Job, deployment: Deployment, tables: TablesOf
) -> None:
    """Short caps count as they are; those above the job's own as that one, whatever they allow."""
    short = cut_in_two(job, deployment, tables(job), [50] * 400, [2] * 200 + [200] * 200)
    assert short[0].stop > 240  # 200 short answers and a part of the long ones
    open_end = cut_in_two(job, deployment, tables(job), [50] * 400, [200] * 200 + [100_000] * 200)
    assert open_end[0].stop == pytest.approx(200, abs=4)
