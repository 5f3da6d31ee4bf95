"""Cutting the prefix order into contiguous ranges, one a replica: what requests cost, and where."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Range = tuple[int, int]

# How far from its target a cut may move to lose less sharing, as a share of a shard's mean cost.
# Two cuts bound a shard, so this makes none dearer than 1.02 of the mean.
_SLACK = 0.01
_ROUNDING = 1e-9  # of sums of costs
# 2 * 32 layers * 32 heads * 128 / 8.03e9 weights: a model of eight billion, where a model's own
# weight is not known.
ATTENTION_WEIGHT = 3.3e-5


def request_cost(
    lengths: Ints,
    lcp: Ints,
    decode_tokens: Ints | Floats | float,
    decode_weight: float = 1.0,
    attention_weight: float = ATTENTION_WEIGHT,
) -> Floats:
    """Expected work of each request in prefix order, in prompt tokens of a short request.

    With u = max(length - LCP, 1) uncached and p = length - u cached prompt tokens, and d decoded:

        u + decode_weight * d + attention_weight * (u * p + u^2 / 2 + d * length + d^2 / 2)

    The last term counts the pairs of tokens that attend to one another. A pair costs
    4 * layers * heads * head_dim FLOP and a token 2 * weights, so its weight is
    2 * layers * heads * head_dim / weights; it matters from some thousand tokens of context on.

    Args:
        lengths: int64[N], prompt tokens.
        lcp: int64[N], prompt tokens shared with the request before; 0 first.
        decode_tokens: Expected tokens of the answer, [N] or the same for all.
        decode_weight: Cost of a decoded token over that of a prompt token.
        attention_weight: Cost of a pair of tokens over that of a prompt token.
    """
    uncached = np.maximum(lengths - lcp, 1).astype(np.float64)
    cached, decoded = lengths - uncached, np.asarray(decode_tokens, dtype=np.float64)
    prefill_pairs = uncached * (cached + uncached / 2)
    decode_pairs = decoded * (lengths + decoded / 2)
    return uncached + decode_weight * decoded + attention_weight * (prefill_pairs + decode_pairs)


def cut_points(lcp: Ints, cost: Floats, shards: int) -> list[Range]:
    """Contiguous (start, stop) ranges of about equal cost, cut where little prefix is shared.

    A cut costs the shared prefix at its border once more, so among the rows near the point of equal
    cost the one with the smallest LCP starts the next shard, and of several such rows the nearest.
    No range costs more than 1.02 of the mean; where single rows are too dear for that, none costs
    more than contiguous ranges must. The points of equal cost depend on sums only, so a few rows
    more or less move cuts by little and most requests stay in their shard.

    Args:
        lcp: Tokens shared with the previous request, in prefix order.
        cost: Expected work of each request, any unit.
        shards: Ranges wanted; fewer come back if there are fewer requests.
    """
    rows = len(lcp)
    if rows == 0:
        return []
    shards = min(shards, rows)
    before = np.append(0.0, np.cumsum(cost))  # cost of the rows before each border
    mean = float(before[-1]) / shards
    most = _most(before, float(cost.max()), shards)
    earliest = _earliest(before, most, shards)
    starts = [0]
    for number in range(1, shards):
        even, slack = mean * number, mean * _SLACK
        low = int(np.searchsorted(before, even - slack))
        high = int(np.searchsorted(before, even + slack, side="right")) - 1
        if low > high:  # one row is dearer than the slack: the border before it, or after
            low = high = high if even - before[high] <= before[low] - even else low
        first = max(starts[-1] + 1, earliest[number])
        fits = int(np.searchsorted(before, float(before[starts[-1]]) + most, side="right")) - 1
        last = min(fits, rows - (shards - number))  # leaves each shard after this one a request
        low, high = min(max(low, first), last), max(min(high, last), first)
        least = low + np.flatnonzero(lcp[low : high + 1] == lcp[low : high + 1].min())
        starts.append(int(least[np.abs(before[least] - even).argmin()]))
    return list(zip(starts, [*starts[1:], rows], strict=True))


def _most(before: Floats, dearest: float, shards: int) -> float:
    """What a range may cost: 1.02 of the mean, or the least that contiguous ranges allow."""
    mean = float(before[-1]) / shards
    low = max(mean * (1 + 2 * _SLACK), dearest) * (1 + _ROUNDING)
    if _earliest(before, low, shards)[0] == 0:
        return low
    high = (mean + dearest) * (1 + _ROUNDING)  # enough: filling each range past the mean ends it
    while high - low > mean * 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if _earliest(before, middle, shards)[0] == 0 else (middle, high)
    return high


def _earliest(before: Floats, most: float, shards: int) -> list[int]:
    """For each range the first start from which it and those after it cost at most `most` each."""
    starts = [len(before) - 1]
    for _ in range(shards):
        starts.append(int(np.searchsorted(before, float(before[starts[-1]]) - most)))
    return starts[:0:-1]


def shard_loss(lcp: Ints, ranges: Sequence[Range]) -> float:
    """Share of the shared prompt tokens that are computed once more because of the cuts, 0 to 1."""
    shared = int(lcp.sum())
    lost = sum(int(lcp[start]) for start, _ in ranges)
    return lost / shared if shared else 0.0


def shard_imbalance(cost: Floats, ranges: Sequence[Range]) -> float:
    """Cost of the dearest range over the mean, at least 1; the job takes so much longer."""
    each = np.array([cost[start:stop].sum() for start, stop in ranges])
    return float(each.max() / each.mean()) if len(each) and each.sum() else 1.0
