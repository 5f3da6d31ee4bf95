"""The one plan of a partition: chosen for the deployment's GPUs, but for what is pinned."""

import json

import pytest
from click.testing import CliRunner
from support import MODEL, Declare
from support_planner import TablesOf, best_of, declared, deployed, fill, planned

from acdc_dagster.backends.local import devices_of
from acdc_dagster.cli import main
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import AcdcError, BackendError, DeclarationError, ModelError
from acdc_dagster.lineage.metadata import plan_metadata
from acdc_dagster.planning.choice import PlanError
from acdc_dagster.planning.planner import plan_partition
from acdc_dagster.planning.stage import profile, read_plan


def test_a_declared_pool_is_planned_for(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """The engine's settings and the number of shards are those of the chosen candidate."""
    job = declared(declare)
    fill(tables(job))
    found = planned(job, deployed(deployment.root, {"pool": "H100:8"}), tables(job))
    best, engine = best_of(found).best, found.plan.engine
    assert best.seconds <= 1.02 * min(each.seconds for each in best_of(found).candidates)
    assert (engine.tensor_parallel, engine.expert_parallel) == (
        best.layout.tensor,
        best.layout.expert,
    )
    assert (len(found.plan.shards), engine.max_num_seqs) == (best.layout.data, best.sequences)
    assert found.plan.pinned == []
    # Workers have an engine each, so none shares experts with another.
    assert all(each.layout.lockstep == 1 for each in best_of(found).candidates)
    predicted = found.plan.predicted
    assert predicted is not None
    assert (predicted.layout, predicted.seconds) == (str(best.layout), best.seconds)


def test_what_is_pinned_stays(deployment: Deployment, declare: Declare, tables: TablesOf) -> None:
    """By the environment or by the job, which comes first; the plan says what and where."""
    engine = {"tensor_parallel": 4, "max_num_seqs": 48, "extra": {"a": 1, "b": 1}}
    there = deployed(deployment.root, {"pool": "H100:8", "engine": engine})
    job = declared(declare, engine={"max_num_seqs": 24, "extra": {"b": 2}}, replicas=2)
    fill(tables(job))
    found = planned(job, there, tables(job))
    plan = found.plan
    assert (plan.engine.tensor_parallel, plan.engine.max_num_seqs, len(plan.shards)) == (4, 24, 2)
    assert plan.engine.extra == {"a": 1, "b": 2}
    assert {(each.layout.tensor, each.layout.data) for each in best_of(found).candidates} == {
        (4, 2)
    }
    assert all(each.sequences <= 24 for each in best_of(found).candidates)
    assert plan.pinned == ["max_num_seqs", "replicas", "tensor_parallel"]
    (told,) = (each for each in plan.why if each.startswith("Pinned"))
    for fact in (
        "tensor_parallel 4 (resources/local.yaml)",
        "max_num_seqs 24 (the job)",
        "replicas 2 (the job)",
    ):
        assert fact in told


def test_pins_that_leave_nothing_are_named(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """Three GPUs cannot share the heads, and eight hold no three replicas of four."""
    job = declared(declare)
    fill(tables(job), rows=10)
    for local in (
        {"pool": "H100:8", "engine": {"tensor_parallel": 3}},
        {"pool": "H100:8", "engine": {"tensor_parallel": 4}, "replicas": 3},
    ):
        with pytest.raises(PlanError, match=r"has what is pinned: tensor_parallel: [34]"):
            planned(job, deployed(deployment.root, local), tables(job))


def test_asset_worker_and_command_have_one_plan(
    deployment: Deployment,
    declare: Declare,
    tables: TablesOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan in `profile`, which workers read, is that of `acdc plan --json`."""
    job = declared(declare)
    fill(tables(job))
    there = deployed(deployment.root, {"pool": "H100:4", "engine": {"max_num_seqs": 99}})
    found = profile(job, there, there.model(MODEL), tables(job), "all")
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(there.root))
    shown = json.loads(CliRunner().invoke(main, ["plan", "long", "--json"]).stdout)
    assert shown["plan"] == json.loads(read_plan(tables(job), "all").model_dump_json())
    assert shown["plan"]["engine"]["max_num_seqs"] == 99
    assert found.choice is not None
    assert len(shown["candidates"]) == len(found.choice.candidates)
    assert shown["best"]["seconds"] == found.plan.predicted.seconds  # type: ignore[union-attr]


def test_the_asset_shows_what_the_plan_was_chosen_from(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """Every candidate, the winner marked, its time and its cost."""
    job = declared(declare)
    fill(tables(job))
    there = deployed(deployment.root, {"pool": "H100:2"})
    found = planned(job, there, tables(job))
    choice = best_of(found)
    shown = plan_metadata(found.plan, choice)
    assert shown["plan"].data == found.plan.model_dump()
    assert shown["predicted_seconds"] == round(choice.best.seconds, 1)
    assert "predicted_cost" not in shown  # no GPU has a price
    lines = shown["candidates"].value.splitlines()
    for each in choice.candidates:
        marks = [line for line in lines if f" {each.layout} " in line]
        assert len(marks) == 1
        assert marks[0].startswith("*") == (each == choice.best)
    assert all(f"- {reason}" in shown["why"].value for reason in found.plan.why)


def test_without_a_pool_the_settings_are_those_declared(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """Those of the sample environment, and one engine a replica."""
    job = declared(declare)
    fill(tables(job), rows=40)
    plan = planned(job, deployment, tables(job)).plan
    engine, given = plan.engine, deployment.environment.backends.local.engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.block_size) == (
        given.max_num_seqs,
        given.max_num_batched_tokens,
        given.block_size,
    )
    assert (engine.tensor_parallel, engine.expert_parallel, len(plan.shards)) == (1, 1, 1)


def test_a_model_that_is_not_understood_runs_as_declared(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """On the deployment's devices; the plan says why, and other pools cannot be asked for."""
    job = declared(declare)
    fill(tables(job), rows=40)
    local = {"pool": "H100:8", "engine": {"tensor_parallel": 2}}
    there = deployed(deployment.root, local, {"model_type": "strange"})
    found = planned(job, there, tables(job))
    assert isinstance(found.choice, AcdcError)
    assert found.choice.problem in found.plan.why[0]
    assert (found.plan.engine.tensor_parallel, len(found.plan.shards)) == (2, 4)
    assert found.plan.predicted is None
    with pytest.raises(ModelError):
        plan_partition(job, there, there.model(MODEL), tables(job), "all", ["H100:1"])


def test_a_pool_that_is_not_known_names_its_line(deployment: Deployment) -> None:
    """When the environment is read."""
    with pytest.raises(DeclarationError, match=r"local.yaml.*H1000.*Did you mean H100"):
        deployed(deployment.root, {"pool": "H1000:8"})


def test_each_worker_has_gpus_of_its_own(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """As many as share its layers, of those that are allowed."""
    job = declared(declare)
    fill(tables(job))
    there = deployed(deployment.root, {"pool": "H100:4", "engine": {"tensor_parallel": 2}})
    plan = planned(job, there, tables(job)).plan
    name = "CUDA_VISIBLE_DEVICES"
    assert [devices_of(plan, shard, {})[name] for shard in plan.shards] == ["0,1", "2,3"]
    assert devices_of(plan, plan.shards[1], {name: "4,5,6,7"})[name] == "6,7"
    with pytest.raises(BackendError, match="allows 2 GPUs"):
        devices_of(plan, plan.shards[0], {name: "4,5"})
