"""Drift: what may be compared, when it counts, and whether another plan then pays."""

from dataclasses import replace

import numpy as np
import pytest
from model_configs import CONFIGS

from acdc_dagster.gpus import Pool, known_gpus
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.makespan import Prediction, predict
from acdc_dagster.planning.cost.workload import Workload, workload
from acdc_dagster.planning.drift.admission import closed, whole_strata
from acdc_dagster.planning.drift.compare import ALARM, Answers, compare
from acdc_dagster.planning.drift.switch import drain_steps, weigh
from acdc_dagster.planning.plan import Shard
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import model_shape

LOOKS = 19
DICE = np.random.default_rng(11)


def spread(mean: float, size: int) -> np.ndarray:
    """Lengths with a coefficient of variation of about one."""
    return DICE.exponential(mean, size).astype(np.int64) + 1


def one(tokens: np.ndarray) -> Answers:
    return Answers(np.zeros(len(tokens), np.int64), tokens)


def test_a_cohort_closes_by_admission() -> None:
    """What ended beyond the first open request of a shard is not in it, shard by shard."""
    done = np.array([1, 1, 0, 1, 1, 1, 1, 1, 0, 0], dtype=bool)
    shards = [Shard(number=0, start=0, stop=5), Shard(number=1, start=5, stop=10)]
    found = closed(done, shards)
    assert np.flatnonzero(found).tolist() == [0, 1, 5, 6, 7]
    assert closed(np.ones(10, dtype=bool), shards).all()
    assert whole_strata(found, np.array([0, 2, 5, 7, 8])).tolist() == [0, 2, 3]


def test_cohorts_by_admission_are_not_biased() -> None:
    """Of 5,000 requests, 256 at once, the first twentieth to end is short and that admitted is not.

    Each step gives every running request a token; one that ends makes room for the next.
    """
    answers = spread(300, 5000)
    ends = np.zeros(5000)
    running: list[float] = [0.0] * 256
    for number, tokens in enumerate(answers):
        place = int(np.argmin(running))
        running[place] = ends[number] = running[place] + tokens
    done = ends <= np.sort(ends)[4000]
    starts = np.arange(0, 5000, 250)
    whole = whole_strata(closed(done, [Shard(number=0, start=0, stop=5000)]), starts)
    admitted = answers[: 250 * len(whole)]
    first = answers[np.argsort(ends)[:250]]
    assert whole.tolist() == list(range(len(whole)))
    assert 2 <= len(whole) < 16
    assert first.mean() < 0.7 * answers.mean()
    assert admitted.mean() == pytest.approx(answers.mean(), rel=0.15)


def test_parts_of_a_job_that_differ_are_no_drift() -> None:
    """Three templates of lengths far apart, in another mix than in the profile."""
    means = np.array([10.0, 100.0, 1000.0])
    strata = np.repeat([0, 1, 2], [50, 50, 50])
    seen = np.repeat([0, 2], [100, 700])
    profile = Answers(strata, spread(1.0, 150) * means[strata].astype(np.int64))
    now = Answers(seen, spread(1.0, 800) * means[seen].astype(np.int64))
    found = compare(profile, now, LOOKS)
    assert not found.drifted
    assert found.ratio == pytest.approx(1.0, abs=0.35)
    assert (found.seen, found.expected) == (800, 100)
    apart = compare(one(profile.tokens), one(now.tokens), LOOKS)
    assert apart.drifted


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_shift_is_seen(factor: float) -> None:
    """Answers half or twice as long as the profile's."""
    found = compare(one(spread(200, 300)), one(spread(200 * factor, 500)), LOOKS)
    assert found.drifted
    assert found.ratio == pytest.approx(factor, rel=0.25)
    assert found.p_value < ALARM / LOOKS
    assert f"{found.ratio:.2f}" in str(found)


def test_a_small_shift_is_none() -> None:
    """A tenth more, of so many answers that it is beyond doubt."""
    found = compare(one(spread(200, 50_000)), one(spread(220, 50_000)), LOOKS)
    assert found.p_value < 1e-6
    assert not found.drifted


def test_false_alarms_are_rare_over_all_looks() -> None:
    """Of 200 jobs of 19 looks each at most a twentieth has an alarm, as far as 200 can tell."""
    jobs = 0
    for _ in range(200):
        alarms = [
            compare(one(spread(100, 25)), one(spread(100, 300)), LOOKS).drifted
            for _ in range(LOOKS)
        ]
        jobs += any(alarms)
    assert jobs <= 18  # 10 expected at most; more than 18 has a chance of under 1 %


def test_answers_cut_at_a_cap_are_equal() -> None:
    """What a cap hides is no difference: two lengths far above it look the same."""
    cap = 64
    before, now = (np.minimum(spread(mean, 400), cap) for mean in (4000, 9000))
    assert not compare(one(before), one(now), LOOKS).drifted
    longer = compare(one(np.minimum(spread(30, 400), cap)), one(now), LOOKS)
    assert longer.drifted


def test_too_little_says_nothing() -> None:
    """Nine answers of the profile, strata that it does not have, or none at all."""
    for profile, seen in (
        (one(spread(10, 9)), one(spread(900, 500))),
        (one(spread(10, 500)), Answers(np.ones(500, np.int64), spread(900, 500))),
        (one(spread(10, 500)), one(spread(10, 0))),
    ):
        found = compare(profile, seen, LOOKS)
        assert (found.drifted, found.ratio, found.p_value) == (False, 1.0, 1.0)


def test_what_a_drain_loses() -> None:
    """Against batches drained at random moments; nothing for one request."""
    answers = spread(200, 20_000)
    lost: list[float] = []
    for _ in range(300):
        met = DICE.choice(answers, 64, p=answers / answers.sum())
        left = met * DICE.random(64)
        lost.append(left.max() - left.mean())
    assert drain_steps(answers, 64) == pytest.approx(np.mean(lost), rel=0.2)
    assert drain_steps(answers, 1) == 0
    assert drain_steps(np.zeros(0, np.int64), 64) == 0
    even = drain_steps(np.full(1000, 100), 256)
    assert even == pytest.approx(50, rel=0.05)


def planned(layout: Layout, work: Workload) -> Prediction:
    shape = model_shape(Config.of(CONFIGS["Qwen3-32B"], "Qwen3-32B"))
    found = predict(shape, Pool("H20", known_gpus({})["H20"], 8), layout, work)
    assert isinstance(found, Prediction)
    return found


def test_a_switch_must_win_back_what_it_costs() -> None:
    """The same change pays for a hundred thousand requests and not for the last two thousand."""
    for rows, pays in ((100_000, True), (2_000, False)):
        answers = np.full(rows, 3000)
        left = workload(np.full(rows, 2000), np.full(rows, 1500), answers)
        old, new = planned(Layout(8), left), planned(Layout(2, 4), left)
        found = weigh(old, new, left, answers)
        assert found.worth == pays
        assert found.gain == pytest.approx(
            old.seconds - new.seconds - old.start_seconds + new.start_seconds
        )
        assert found.start == new.start_seconds
        assert 0 < found.lost_cache < 10
        assert found.drain > 0
        assert ("does not pay" in str(found)) != pays
        assert str(found).count(" s") + str(found).count(" min") + str(found).count(" h") >= 5


def test_the_same_plan_is_no_gain() -> None:
    """Whatever the cost."""
    answers = np.full(5000, 100)
    left = workload(np.full(5000, 500), np.zeros(5000, np.int64), answers)
    plan = planned(Layout(2, 4), left)
    assert not weigh(plan, replace(plan, start_seconds=plan.start_seconds), left, answers).worth
