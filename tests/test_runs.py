"""Which rows of `history` a plan learns from, and that the plan does."""

from support import MODEL, Declare
from support_history import a_run, write_runs
from support_planner import TablesOf, best_of, declared, deployed, fill, planned

from acdc_dagster.deployment import Deployment
from acdc_dagster.planning.cost.makespan import EngineLimits
from acdc_dagster.planning.history.runs import CALIBRATION, measured_runs
from acdc_dagster.planning.why import duration


def test_runs_of_all_jobs_and_of_the_calibration_are_read(
    deployment: Deployment, declare: Declare
) -> None:
    """The newest first; not those of other models, and none that is marked or failed."""
    declare_two = [declared(declare), declare("other", _table(), prompt_dot_md="{{ id }}")]
    for job, days in (("long", 2), ("other", 1), (CALIBRATION, 3)):
        write_runs(deployment, job, [a_run(10.0 + days, days=days)], MODEL)
    assert [job.name for job in declare_two] == ["long", "other"]
    write_runs(deployment, "other", [a_run(1.0)], "another-model", shard=2)
    for reason in ("preempted", "contended", "restarted"):
        write_runs(deployment, "long", [a_run(1.0)], MODEL, outlier=reason)
    write_runs(deployment, "long", [a_run(1.0)], MODEL, failed=3)
    write_runs(deployment, "long", [a_run(1.0, gpu="a card of no name")], MODEL, shard=1)
    found = measured_runs(deployment, MODEL)
    assert [run.seconds for run in found] == [11.0, 12.0, 13.0]
    assert {run.gpu for run in found} == {"H100"}


def test_a_plan_takes_the_limits_that_were_measured_to_be_faster(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """On the CPU, where nothing but history changes the settings; and not against a pin."""
    job = declared(declare)
    fill(tables(job), rows=1000, prompt=500, most=100)
    local = {"engine": {"dtype": "float32"}}
    there = deployed(deployment.root, local, _SMALL)
    before = planned(job, there, tables(job)).plan
    assert (before.engine.max_num_seqs, before.engine.max_num_batched_tokens) == (64, 2048)
    assert before.predicted is not None
    slow = [a_run(900.0, gpu="CPU", max_num_batched_tokens=2048)] * 3
    fast = [a_run(300.0, gpu="CPU", max_num_seqs=16, max_num_batched_tokens=2048)] * 3
    write_runs(there, "long", [*slow, *fast], MODEL)
    found = planned(job, there, tables(job))
    assert best_of(found).best.limits == EngineLimits(16, 2048)
    assert found.plan.engine.max_num_seqs == 16
    predicted = found.plan.predicted
    assert predicted is not None
    assert predicted.source == "history"
    assert predicted.error < before.predicted.error
    assert any("3 measured run(s)" in sentence for sentence in found.plan.why)
    pinned = deployed(deployment.root, {"engine": {"dtype": "float32", "max_num_seqs": 64}}, _SMALL)
    after = planned(job, pinned, tables(job)).plan
    assert after.engine.max_num_seqs == 64
    # What is predicted changes with each run; what is done does not, and nothing becomes stale.
    assert after.predicted != before.predicted
    assert after.run == before.run


def test_a_plan_says_when_it_prefers_what_was_measured(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """The sentence has the facts: what was never run, its time, and the error that decides."""
    job = declared(declare)
    fill(tables(job), rows=1000, prompt=500, most=100)
    there = deployed(deployment.root, {"engine": {"dtype": "float32"}}, _SMALL)
    runs = [a_run(9000.0, gpu="CPU", max_num_seqs=48, max_num_batched_tokens=2048)] * 5
    write_runs(there, "long", runs, MODEL)
    found = planned(job, there, tables(job))
    best, faster = best_of(found).best, best_of(found).candidates[0]
    assert (best.measured, best.limits) == (5, EngineLimits(48, 2048))
    assert (faster.measured, faster.limits) == (0, EngineLimits(64, 2048))
    assert faster.seconds < best.seconds < faster.seconds * (1 + faster.error)
    (told,) = [sentence for sentence in found.plan.why if "never run" in sentence]
    for fact in ("64 requests", duration(faster.seconds), f"{faster.error:.0%}"):
        assert fact in told


def _table() -> dict[str, object]:
    return {"source": {"table": "rows", "id_column": "id"}, "model": MODEL}


_SMALL = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
