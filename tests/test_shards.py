"""Cutting the prefix order into shards, and the sample that a job is judged by."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from acdc_dagster.planning.shards import (
    cut_points,
    request_cost,
    shard_imbalance,
    shard_loss,
)

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


@pytest.mark.parametrize("kind", ["even", "varied", "one huge"])
@pytest.mark.parametrize("shards", [2, 3, 5])
@pytest.mark.parametrize("rows", [6, 11, 14])
def test_no_shard_costs_more_than_one_must(kind: str, shards: int, rows: int) -> None:
    """Where rows are few and dear, the dearest shard is that of the best of all ways to cut."""
    for seed in range(10):
        cost = costs(kind, rows, seed)
        mean = cost.sum() / shards
        best = min(
            max(part.sum() for part in np.split(cost, list(cuts)))
            for cuts in combinations(range(1, rows), shards - 1)
        )
        ranges = cut_points(random_lcp(rows, seed), cost, shards)
        most = max(1.02 * mean, best + 1e-3 * mean)
        assert shard_imbalance(cost, ranges) <= most / mean


def job(kind: str, rows: int) -> NDArray[np.int64]:
    """The LCP array of a job in which requests share much."""
    at = np.arange(rows)
    match kind:
        case "one prefix is half the job":
            lcp = np.where(at < rows // 2, 1000, np.where(at % 20 == 0, 3, 800))
        case "documents with questions":
            lcp = np.where(at % 20 == 0, 3, 1500)
        case _:
            lcp = np.full(rows, 1500)
            lcp[rows - rows // np.arange(1, 40)] = 3
    lcp[0] = 0
    return lcp


JOBS = ["one prefix is half the job", "documents with questions", "prefixes of unequal weight"]
ITEMS = ["even", "skewed", "very skewed", "long ones first"]


def items(kind: str, rows: int) -> NDArray[np.int64]:
    """Tokens beyond what is shared."""
    dice = np.random.default_rng(3)
    match kind:
        case "even":
            return np.full(rows, 300)
        case "skewed":
            return dice.lognormal(5.3, 1, rows).astype(np.int64) + 1
        case "very skewed":
            return dice.lognormal(5.3, 1.5, rows).astype(np.int64) + 1
        case _:
            return np.where(np.arange(rows) < rows // 3, 5000, 50)


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("item", ITEMS)
def test_many_shards_are_even_and_lose_little(kind: str, item: str) -> None:
    """64 shards: the dearest is within 3 % of the mean, and 0.2 % of what is shared is lost."""
    lcp = job(kind, 100_000)
    cost = request_cost(lcp + items(item, len(lcp)), lcp, decode_tokens=100)
    ranges = cut_points(lcp, cost, 64)
    assert len(ranges) == 64
    assert shard_imbalance(cost, ranges) <= 1.03
    assert shard_loss(lcp, ranges) <= 0.002


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("item", ITEMS)
def test_a_few_rows_more_or_less_change_little(kind: str, item: str) -> None:
    """With 20 of 20,000 rows gone, cuts move by some rows and the rest stay where they were."""
    rows, shards = 20_000, 8
    lcp, dice = job(kind, rows), np.random.default_rng(5)
    cost = request_cost(lcp + items(item, rows), lcp, decode_tokens=100)
    gone = np.sort(dice.choice(np.flatnonzero(cost < 2 * cost.mean()), 20, replace=False))
    left = np.delete(np.arange(rows), gone)
    before, after = cut_points(lcp, cost, shards), cut_points(lcp[left], cost[left], shards)
    window = 0.02 * cost.sum() / shards + cost[gone].sum()  # that two cuts can lie apart in cost
    for (start, _), (moved, _) in zip(before[1:], after[1:], strict=True):
        low, high = sorted((start, int(left[moved])))
        assert cost[low:high].sum() <= window + cost.max()
    was, now = (np.repeat(np.arange(shards), [b - a for a, b in cut]) for cut in (before, after))
    assert (was[left] == now).mean() > 0.97


@pytest.mark.parametrize(
    ("low", "cut"),
    [
        ({503: 0}, 503),
        ({497: 3, 504: 2}, 504),
        ({497: 2, 504: 2}, 497),  # the nearer of two
        ({400: 0, 504: 40}, 504),  # too far away to be worth it
        ({}, 500),
    ],
)
def test_a_cut_is_where_little_is_shared(low: dict[int, int], cut: int) -> None:
    """Near the point of equal cost, the request that shares least with its neighbour is cut at."""
    lcp = np.full(1000, 100)
    for at, shared in low.items():
        lcp[at] = shared
    assert cut_points(lcp, np.ones(1000), 2) == [(0, cut), (cut, 1000)]


def test_what_cuts_lose_and_how_even_they_are() -> None:
    """Each cut loses the prefix at its border; the dearest shard sets the pace."""
    lcp, cost = np.array([0, 60, 20, 0, 120]), np.array([1.0, 1.0, 1.0, 2.0, 4.0])
    assert shard_loss(lcp, [(0, 5)]) == 0
    assert shard_loss(lcp, [(0, 2), (2, 3), (3, 5)]) == pytest.approx(0.1)
    assert shard_imbalance(cost, [(0, 5)]) == 1
    assert shard_imbalance(cost, [(0, 2), (2, 3), (3, 5)]) == pytest.approx(2)
    assert (shard_loss(np.zeros(0, dtype=np.int64), []), shard_imbalance(np.zeros(0), [])) == (0, 1)


def test_the_cost_of_a_request() -> None:
    """Uncached prompt, answer and pairs of tokens: exactly, and as the prefix is or is not kept."""
    lengths, lcp = np.array([100, 100, 100]), np.array([0, 80, 100])
    plain = request_cost(lengths, lcp, 10, attention_weight=0)
    assert plain.tolist() == [110, 30, 11]  # the last token of a prompt is always computed
    assert request_cost(lengths, lcp, 10, decode_weight=3, attention_weight=0)[1] == 50
    assert request_cost(lengths, lcp, np.array([0, 5, 9]), attention_weight=0)[1] == 25
    pairs = request_cost(lengths, lcp, 10, attention_weight=1) - plain
    assert pairs.tolist() == [5000 + 1050, 20 * 80 + 200 + 1050, 99 + 0.5 + 1050]


def test_a_long_context_costs_more_than_its_tokens() -> None:
    """As much as 32 short prompts is one that is 32 times as long, and its attention."""
    short, long = request_cost(np.array([1000, 32_000]), np.array([0, 0]), 0)
    assert 1 < short / 1000 < 1.05
    assert 1.3 < long / 32_000 < 2


def test_nothing_to_cut() -> None:
    """Without requests there are no shards."""
    assert cut_points(np.zeros(0, dtype=np.int64), np.zeros(0), 3) == []
