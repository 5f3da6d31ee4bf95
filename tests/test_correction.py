"""What measured runs make of predictions: their time, their error, and what is preferred."""

import math
from dataclasses import replace
from typing import Any

import pytest
from model_configs import CONFIGS
from support_history import NOW, a_run

from acdc_dagster.gpus import Pool, known_gpus
from acdc_dagster.planning.choice import candidates, choose
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.makespan import EngineLimits, Prediction, predict
from acdc_dagster.planning.cost.workload import Workload, uniform
from acdc_dagster.planning.history.correction import Correction
from acdc_dagster.planning.history.runs import Run
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import model_shape

GPUS = known_gpus({})
SHAPE = model_shape(Config.of(CONFIGS["Llama-3.1-8B"], "Llama"))
LIMITS = EngineLimits(64, 8192)
JOB = uniform(10_000, 5_000_000, 0, 1_000_000)


def predicted(
    job: Workload = JOB, layout: Layout | None = None, limits: EngineLimits = LIMITS
) -> Prediction:
    """By the roofline, on H100s."""
    layout = layout or Layout()
    found = predict(SHAPE, Pool("H100", GPUS["H100"], 8), layout, job, limits)
    assert isinstance(found, Prediction)
    return found


def running(each: Prediction) -> float:
    return each.seconds - each.start_seconds


def run_as_long(factor: float, max_num_seqs: int = 64, **given: Any) -> Run:
    """A run that took so many times as long as predicted."""
    job = uniform(1000, 500_000, 0, 100_000)
    usual = predicted(job, limits=EngineLimits(max_num_seqs, 8192))
    return a_run(factor * running(usual), max_num_seqs=max_num_seqs, **given)


def corrected(runs: list[Run], *found: Prediction) -> list[Prediction]:
    return Correction(SHAPE, GPUS, runs, NOW).of(list(found), JOB)


def test_without_runs_a_prediction_is_the_rooflines() -> None:
    """Its time stays, and its error is at least that of the GPU's figures."""
    (found,) = corrected([], predicted())
    assert (found.seconds, found.source, found.measured) == (
        predicted().seconds,
        "roofline",
        0,
    )
    assert found.error > GPUS["H100"].uncertainty


def test_a_run_without_work_says_nothing() -> None:
    """As of vectors for prompts that were all in the cache, or one that no GPU has room for."""
    idle = replace(run_as_long(2.0), cached_tokens=500_000, completion_tokens=0)
    huge = replace(run_as_long(2.0), prompt_tokens=10**12)
    (found,) = corrected([idle, huge], predicted())
    assert (found.seconds, found.source) == (predicted().seconds, "roofline")


def test_runs_pull_a_prediction_to_what_they_measured() -> None:
    """The more of them, the nearer; and the error shrinks with each."""
    errors, ratios = list[float](), list[float]()
    for count in (0, 1, 3, 10, 30):
        (found,) = corrected([run_as_long(2.0)] * count, predicted())
        errors.append(found.error)
        ratios.append(running(found) / running(predicted()))
    assert errors == sorted(errors, reverse=True)
    assert ratios == sorted(ratios)
    assert errors[-1] < 0.1 * errors[0] or errors[-1] < 0.05
    assert ratios[-1] == pytest.approx(2, rel=0.03)
    (last,) = corrected([run_as_long(2.0)] * 30, predicted())
    assert (last.source, last.measured) == ("history", 30)
    assert last.decode_rate == pytest.approx(predicted().decode_rate / ratios[-1])


def test_a_configuration_that_was_never_run_learns_from_its_gpu() -> None:
    """By less, with more error, and not at all from another GPU."""
    two = predicted(layout=Layout(2, 1))
    same, other = corrected([run_as_long(2.0)] * 10, predicted(), two)
    assert other.source == "roofline x history"
    assert 1.5 < running(other) / running(two) < running(same) / running(predicted())
    assert same.error < other.error < GPUS["H100"].uncertainty
    elsewhere = a_run(1.0, gpu="L4")
    (apart,) = corrected([elsewhere], predicted())
    assert (apart.seconds, apart.source) == (predicted().seconds, "roofline")


def test_new_runs_count_more_than_old_ones() -> None:
    """Of two that disagree the newer is nearer, and more so the older the other is."""
    ratios = [
        running(found) / running(predicted())
        for days in (0, 60, 365)
        for found in corrected([run_as_long(2.0), run_as_long(1.0, days=float(days))], predicted())
    ]
    assert ratios[0] < ratios[1] < ratios[2]
    assert ratios[0] == pytest.approx(math.sqrt(2), rel=0.05)


def test_runs_of_the_present_engine_count_more() -> None:
    """The version of the newest run is the present one."""
    old, new = run_as_long(1.0, days=1.0), run_as_long(2.0, engine="vllm 2")
    (across,) = corrected([new, old], predicted())
    (within,) = corrected([new, run_as_long(1.0, days=1.0, engine="vllm 2")], predicted())
    assert across.seconds > within.seconds


def test_what_was_measured_is_preferred_within_the_error() -> None:
    """A candidate that is predicted to be a little faster and was never run does not win."""
    usual, other = predicted(), predicted(limits=EngineLimits(80, 8192))
    assert other.seconds < usual.seconds
    tried = corrected([run_as_long(1.0)] * 5, usual, other)
    assert choose(tried).best.limits == LIMITS
    untried = corrected([], usual, other)
    assert choose(untried).best.seconds <= 1.02 * other.seconds
    few, many = (predicted(limits=EngineLimits(count, 8192)) for count in (4, 1024))
    slow = [run_as_long(4.0, max_num_seqs=4)] * 5
    far = corrected(slow, few, many)
    assert far[0].measured
    assert choose(far).best.limits.sequences == 1024


def test_a_slow_machine_changes_all_candidates_alike() -> None:
    """Their order stays that of the roofline where nothing tells them apart."""
    pools = [Pool("H100", GPUS["H100"], 8)]
    found = candidates(SHAPE, pools, JOB, LIMITS)
    after = Correction(SHAPE, GPUS, [run_as_long(3.0, max_num_seqs=7)] * 20, NOW).of(found, JOB)
    order = sorted(range(len(found)), key=lambda at: running(found[at]))
    assert order == sorted(range(len(after)), key=lambda at: running(after[at]))
    assert all(running(a) > 1.8 * running(b) for a, b in zip(after, found, strict=True))
