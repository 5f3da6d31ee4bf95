"""The sample a job is judged by: its size, how strata share it, and that it is unbiased."""

import math

import numpy as np
import pytest

from acdc_dagster.planning.sample import (
    Wanted,
    allocate,
    needed,
    sample_positions,
    sample_size,
    sample_weights,
)


@pytest.mark.parametrize(
    ("rows", "size"),
    [(0, 0), (1, 1), (385, 385), (386, 193), (1000, 278), (8000, 400), (10**6, 50_000)],
)
def test_the_size_of_a_sample(rows: int, size: int) -> None:
    """Five percent, or a tenth's error of the mean if that needs more; all where half is needed."""
    assert sample_size(rows) == size


def test_what_an_error_needs() -> None:
    """The formulas' known values: (1.96 c / e)^2 for a mean, 292 for a 95th percentile."""
    endless = 10**12
    assert math.ceil(needed(endless, 0.77)) == 292  # of a mean 228, but the rank needs more
    assert math.ceil(needed(endless, 1.0)) == 385
    assert math.ceil(needed(endless, 2.15)) == 1776
    assert math.ceil(needed(endless, 0.1, Wanted(mean=0.1, rank=0.05))) == 73
    assert sample_size(20_000, variation=4.0) == math.ceil(needed(20_000, 4.0)) > 1000


@pytest.mark.parametrize("seed", range(20))
def test_an_allocation_keeps_to_its_strata(seed: int) -> None:
    """All draws are given out; each stratum gets one at least and no more than it has."""
    dice = np.random.default_rng(seed)
    sizes = dice.integers(1, 500, dice.integers(1, 60))
    spread = None if seed % 4 == 0 else dice.exponential(size=len(sizes)) * dice.integers(0, 2)
    for total in {len(sizes), int(sizes.sum()), (len(sizes) + int(sizes.sum())) // 2}:
        chosen = allocate(sizes, total, spread)
        assert chosen.sum() == total
        assert (chosen >= 1).all()
        assert (chosen <= sizes).all()


def test_an_allocation_follows_size_and_spread() -> None:
    """In proportion to N S; what a small stratum cannot take goes to the others."""
    assert allocate(np.array([100, 300]), 40).tolist() == [10, 30]
    assert allocate(np.array([100, 300]), 40, np.array([9.0, 1.0])).tolist() == [30, 10]
    assert allocate(np.array([20, 300]), 40, np.array([90.0, 1.0])).tolist() == [20, 20]
    assert allocate(np.array([20, 300]), 40, np.array([0.0, 1.0])).tolist() == [1, 39]


@pytest.mark.parametrize("rows", [0, 1, 400, 5000, 20_000])
def test_a_sample_is_of_the_rows(rows: int) -> None:
    """Positions are sorted, without repeats, and the same again for the same seed."""
    at = sample_positions(rows)
    assert len(at) == sample_size(rows)
    assert sorted(set(at.tolist())) == at.tolist()
    assert all(0 <= position < rows for position in at)
    assert (sample_positions(rows) == at).all()


def test_a_sample_is_uniform_over_the_order() -> None:
    """Every tenth of the order is in it by about a tenth, and another seed chooses others."""
    at = sample_positions(20_000)
    tenths = np.bincount(at // 2000, minlength=10)
    assert tenths.sum() == 1000
    assert tenths.min() > 60
    assert tenths.max() < 140
    assert sample_positions(20_000, seed=1).tolist() != at.tolist()


def test_each_stratum_has_its_share_of_a_sample() -> None:
    """By size; a stratum of one request is in it too."""
    starts = np.array([0, 1, 1000, 3000])
    at = sample_positions(4000, size=81, starts=starts)
    assert np.histogram(at, [*starts, 4000])[0].tolist() == [1, 20, 40, 20]


def test_a_weighted_sample_is_unbiased() -> None:
    """Draws that follow the spread would overrate a wild stratum; their weights undo it."""
    dice = np.random.default_rng(7)
    starts = np.array([0, 3000])
    answers = np.append(dice.integers(90, 110, 3000), dice.integers(0, 4000, 1000))
    spread = np.array([answers[:3000].std(), answers[3000:].std()])
    means: list[float] = []
    plain: list[float] = []
    for seed in range(300):
        at = sample_positions(4000, seed, 200, starts, spread)
        means.append(float(np.average(answers[at], weights=sample_weights(at, starts, 4000))))
        plain.append(float(answers[at].mean()))
    assert np.mean(means) == pytest.approx(answers.mean(), rel=0.01)
    assert np.mean(plain) > 2 * answers.mean()
