"""Cutting the prefix order into contiguous ranges, one a replica."""

import numpy as np
from numpy.typing import NDArray

# How far from the equal-cost point a cut may move to lose less sharing, as a share of all rows.
_SLACK = 0.01


def cut_points(
    lcp: NDArray[np.int64], cost: NDArray[np.float64], shards: int
) -> list[tuple[int, int]]:
    """Contiguous (start, stop) ranges of about equal cost, cut where little prefix is shared.

    A cut costs the shared prefix at its border once more, so among the rows near the equal-cost
    point the one with the smallest LCP starts the next shard.

    Args:
        lcp: Tokens shared with the previous request, in prefix order.
        cost: Expected work of each request, any unit.
        shards: Ranges wanted; fewer come back if there are fewer requests.
    """
    rows = len(lcp)
    if rows == 0:
        return []
    shards = min(shards, rows)
    done = np.cumsum(cost)
    slack = max(int(rows * _SLACK), 1)
    starts = [0]
    for number in range(1, shards):
        even = int(np.searchsorted(done, float(done[-1]) * number / shards)) + 1
        last = rows - (shards - number)  # leaves each shard after this one a request
        low = min(max(starts[-1] + 1, even - slack), last)
        high = max(low, min(even + slack, last))
        starts.append(low + int(np.argmin(lcp[low : high + 1])))
    return list(zip(starts, [*starts[1:], rows], strict=True))
