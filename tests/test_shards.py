"""Cutting the prefix order into shards, and the sample that a job is judged by."""

import numpy as np
import pytest
from numpy.typing import NDArray

from acdc_dagster.planning.sample import sample_positions, sample_size
from acdc_dagster.planning.shards import cut_points

Costs = NDArray[np.float64]


def costs(kind: str, rows: int, seed: int) -> Costs:
    """What the requests cost: all the same, lengths as they come, or one far above the rest."""
    dice = np.random.default_rng(seed)
    match kind:
        case "even":
            return np.ones(rows)
        case "varied":
            return dice.integers(1, 2000, rows) + 256.0
        case _:
            cost = np.ones(rows)
            cost[dice.integers(rows)] = 10.0 * rows
            return cost


def random_lcp(rows: int, seed: int) -> NDArray[np.int64]:
    """Any shared tokens; none before the first."""
    lcp = np.random.default_rng(seed).integers(0, 50, rows)
    lcp[:1] = 0
    return lcp


@pytest.mark.parametrize("kind", ["even", "varied", "one huge"])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 60, 1000])
def test_shards_are_contiguous_cover_all_and_have_work(kind: str, shards: int, rows: int) -> None:
    """Each request is in exactly one shard, in order, and no replica is started for nothing."""
    for seed in range(20):
        ranges = cut_points(random_lcp(rows, seed), costs(kind, rows, seed), shards)
        assert len(ranges) == min(shards, rows)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == rows
        assert [stop for _, stop in ranges[:-1]] == [start for start, _ in ranges[1:]]
        assert all(start < stop for start, stop in ranges)


@pytest.mark.parametrize("kind", ["even", "varied"])
@pytest.mark.parametrize("shards", [2, 3, 8])
def test_shards_cost_about_the_same(kind: str, shards: int) -> None:
    """No shard is off its equal share by more than the rows that a cut may move at each end."""
    rows = 2000
    for seed in range(20):
        cost = costs(kind, rows, seed)
        moved = 2 * (rows // 100 + 1) * cost.max()
        for start, stop in cut_points(random_lcp(rows, seed), cost, shards):
            assert abs(cost[start:stop].sum() - cost.sum() / shards) <= moved


@pytest.mark.parametrize(
    ("low", "cut"),
    [
        ({503: 0}, 503),
        ({496: 3, 505: 2}, 505),
        ({400: 0, 505: 40}, 505),  # too far away to be worth it
    ],
)
def test_a_cut_is_where_little_is_shared(low: dict[int, int], cut: int) -> None:
    """Near the point of equal cost, the request that shares least with its neighbour is cut at."""
    lcp = np.full(1000, 100)
    for at, shared in low.items():
        lcp[at] = shared
    assert cut_points(lcp, np.ones(1000), 2) == [(0, cut), (cut, 1000)]


def test_nothing_to_cut() -> None:
    """Without requests there are no shards."""
    assert cut_points(np.zeros(0, dtype=np.int64), np.zeros(0), 3) == []


@pytest.mark.parametrize(
    ("rows", "size"),
    [(0, 0), (1, 1), (399, 399), (400, 400), (401, 400), (8000, 400), (8001, 401), (10**6, 50_000)],
)
def test_sample_size(rows: int, size: int) -> None:
    """Five percent, but at least 400 rows where there are as many."""
    assert sample_size(rows) == size


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
