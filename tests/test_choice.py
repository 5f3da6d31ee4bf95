"""Which layout is chosen, and what is said about it."""

from dataclasses import replace

import numpy as np
import pytest
from model_configs import CONFIGS

from acdc_dagster.gpus import Pool, known_gpus
from acdc_dagster.planning.choice import Goal, PlanError, candidates, choose
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.makespan import Prediction, Unfit, predict
from acdc_dagster.planning.cost.workload import Workload, workload
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import ModelShape, model_shape
from acdc_dagster.planning.why import duration, reasons

GPUS = known_gpus({})


def shape(name: str) -> ModelShape:
    return model_shape(Config.of(CONFIGS[name], name))


def pool(name: str, count: int, price: float | None = None) -> Pool:
    return Pool(name, GPUS[name].model_copy(update={"price_hour": price}), count)


def job(prompt: int, answer: int, rows: int = 100_000, lcp: int = 0) -> Workload:
    """So many requests of one size, which share their first `lcp` tokens."""
    return workload(np.full(rows, prompt), np.full(rows, lcp), np.full(rows, answer))


def fit(name: str, gpus: Pool, layout: Layout, work: Workload) -> Prediction:
    found = predict(shape(name), gpus, layout, work)
    assert isinstance(found, Prediction)
    return found


def test_of_the_papers_layouts_prompts_decide() -> None:
    """Eight replicas with shared experts for short prompts, tensor parallelism for long ones."""
    eight = pool("H20", 8)
    layouts = [Layout(1, 8, 8), Layout(2, 4, 8), Layout(4, 2, 8), Layout(8, 1, 8)]
    for prompt, best in ((100, "T1-D8-E8"), (100_000, "T8-D1-E8")):
        work = job(prompt, 1)
        rates = {
            str(each): fit("Qwen3-30B-A3B", eight, each, work).prefill_rate for each in layouts
        }
        assert max(rates, key=lambda each: rates[each]) == best


def test_of_the_papers_layouts_tensor_beyond_the_kv_heads_loses_long_answers() -> None:
    """Eight GPUs keep each of four KV heads twice: over a third slower than four."""
    four, eight = (
        fit("Qwen3-30B-A3B", pool("H20", 8), layout, job(100, 30_000, 10_000))
        for layout in (Layout(4, 2, 8), Layout(8, 1, 8))
    )
    assert eight.decode_rate < 0.67 * four.decode_rate
    assert eight.seconds > four.seconds / 0.67


def test_sharing_and_more_gpus_make_a_job_shorter() -> None:
    """Each in about its proportion, once starting is paid."""
    work = job(1000, 100, lcp=800)
    some, more = (fit("Llama-3.1-8B", pool("H100", 8), Layout(1, data), work) for data in (4, 8))
    running = [each.seconds - each.start_seconds for each in (some, more)]
    assert running[0] == pytest.approx(2 * running[1], rel=0.01)
    alone = fit("Llama-3.1-8B", pool("H100", 8), Layout(1, 8), job(1000, 100))
    assert alone.seconds - alone.start_seconds > 2 * running[1]
    assert more.sequences >= alone.sequences


def test_a_long_answer_bounds_a_small_job() -> None:
    """No layout is faster than the steps of its longest answer."""
    lengths, answers = np.full(10, 100), np.append(np.full(9, 10), 20_000)
    work = workload(lengths, np.zeros(10, np.int64), answers)
    found = fit("Llama-3.1-8B", pool("H100", 8), Layout(1, 8), work)
    assert found.seconds - found.start_seconds > 20_000 * 0.003


def test_a_small_job_takes_few_gpus() -> None:
    """Where starting is all, more GPUs win nothing and cost more."""
    found = candidates(shape("Llama-3.1-8B"), [pool("H100", 16)], job(100, 1, 10))
    assert choose(found).best.layout.gpus == 1


def test_a_model_of_several_nodes_gets_pipeline_stages() -> None:
    """A dense model that one node cannot hold is cut into stages of whole nodes."""
    found = candidates(shape("Llama-3-70B"), [pool("L4", 16)], job(1000, 100))
    assert {each.layout for each in found} == {Layout(8, 1, 1, 2)}
    within = candidates(shape("Llama-3-70B"), [pool("L40S", 16)], job(1000, 100))
    assert all(each.layout.pipeline == 1 for each in within)


def test_less_than_a_node_is_a_pool() -> None:
    """Two GPUs of a node of eight give one layout of two and two of one each."""
    found = candidates(shape("Llama-3.1-8B"), [pool("H100", 2)], job(1000, 100))
    assert {str(each.layout) for each in found} == {"T1-D1", "T1-D2", "T2-D1"}


def test_what_fits_nowhere_is_told_with_what_would() -> None:
    """The limiting bytes, and the fewest GPUs in powers of two."""
    model, work = shape("DeepSeek-V3"), job(1000, 100)
    with pytest.raises(PlanError, match=r"L4:8: T8-D1 needs 8\d\.\d GB") as caught:
        candidates(model, [pool("L4", 8)], work)
    assert "It would fit L4:64" in caught.value.remedy
    assert candidates(model, [pool("L4", 64)], work)
    too_long = job(1000, 1_000_000, 10)
    lacking = predict(shape("Llama-3.1-8B"), pool("H100", 1), Layout(), too_long)
    assert isinstance(lacking, Unfit)
    assert lacking.needed > lacking.room > 0


def test_a_deadline_takes_the_cheapest_that_meets_it() -> None:
    """And one that nothing meets takes the fastest, and says so."""
    found = candidates(shape("Llama-3.1-8B"), [pool("H100", 16)], job(1000, 200))
    fastest = choose(found).best
    relaxed = choose(found, Goal(deadline_seconds=8 * fastest.seconds))
    assert relaxed.met
    assert relaxed.best.seconds <= 8 * fastest.seconds
    assert relaxed.best.layout.gpus < fastest.layout.gpus
    assert relaxed.best.gpu_seconds < fastest.gpu_seconds
    missed = choose(found, Goal(deadline_seconds=1))
    assert not missed.met
    assert missed.best.seconds == min(each.seconds for each in found)


def test_a_budget_takes_the_fastest_within_it() -> None:
    """Over pools with prices; without prices it cannot be told."""
    model, work = shape("Llama-3.1-8B"), job(1000, 200)
    pools = [pool("H100", 8, 3.0), pool("L4", 8, 0.7)]
    found = candidates(model, pools, work)
    costs = [each.cost for each in found if each.cost is not None]
    assert len(costs) == len(found)
    budget = 1.05 * min(costs)
    within = choose(found, Goal(budget=budget))
    assert within.met
    assert (within.best.cost or 0) <= budget
    able = [each.seconds for each in found if (each.cost or 0) <= budget]
    assert within.best.seconds <= 1.02 * min(able)
    assert not choose(found, Goal(budget=min(costs) / 2)).met
    with pytest.raises(PlanError, match="price"):
        choose(candidates(model, [pool("H100", 8)], work), Goal(budget=1))


def test_the_reasons_are_facts_of_the_candidates() -> None:
    """They name the winner, the runner-up, and a change that would make another win."""
    model, work = shape("Qwen3-30B-A3B"), job(100, 10_000)
    pools = [pool("H20", 8)]
    choice = choose(candidates(model, pools, work))
    said = reasons(choice, model, work, lambda other: candidates(model, pools, other))
    assert str(choice.best.layout) in said[0]
    assert duration(choice.best.seconds) in said[0]
    assert any("4 KV heads" in sentence for sentence in said)
    told = [sentence for sentence in said if sentence.startswith("With answers a quarter as long")]
    short = choose(candidates(model, pools, job(100, 2_500))).best.layout
    differs = (short.tensor, short.expert) != (
        choice.best.layout.tensor,
        choice.best.layout.expert,
    )
    assert bool(told) == differs
    if told:
        assert str(short) in told[0]


def test_a_job_without_requests_is_planned_all_the_same() -> None:
    """It only starts."""
    none = np.zeros(0, np.int64)
    work = workload(none, none, none)
    found = fit("Llama-3.1-8B", pool("H100", 1), Layout(), work)
    assert found.seconds == found.start_seconds
    assert replace(found, seconds=3600).gpu_seconds == 3600
