"""Strata: ranges of the prefix order whose requests begin alike."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# A stratum may be a quarter of what it may be at most, so that a cut can follow a subtree's border.
_LEAST = 4


def strata(lcp: Ints, share: float = 0.05) -> Ints:
    """First positions of ranges that each hold at most `share` of a job in prefix order.

    A range that is too large is cut where its neighbours share least, which is the border of the
    highest subtrees in it; of several such places in the one nearest its middle. So requests of
    different templates are apart, and a template that is most of the job is cut by what its
    prompts begin with.

    Args:
        lcp: int64[N], prompt tokens shared with the request before; 0 first.
        share: Of the requests, 0 to 1. No range holds less than a quarter of it, unless the job is
            smaller.

    Returns:
        int64[H], from 0; empty for no requests.
    """
    rows = len(lcp)
    if rows == 0:
        return np.zeros(0, dtype=np.int64)
    most = max(int(share * rows), 1)
    least = max(most // _LEAST, 1)
    starts: list[int] = []
    ranges = [(0, rows)]
    while ranges:
        start, stop = ranges.pop()
        if stop - start <= most:
            starts.append(start)
            continue
        inner = lcp[start + least : stop - least + 1]
        lowest = start + least + np.flatnonzero(inner == inner.min())
        cut = int(lowest[np.abs(lowest - (start + stop) // 2).argmin()])
        ranges += [(start, cut), (cut, stop)]
    return np.sort(np.array(starts, dtype=np.int64))


def sizes_of(starts: Ints, rows: int) -> Ints:
    """Requests of each stratum, int64[H], of `rows` in all."""
    return np.diff(np.append(starts, rows)).astype(np.int64)


def stratum_of(starts: Ints, positions: Ints) -> Ints:
    """Number of the stratum that each position lies in, from 0."""
    return (np.searchsorted(starts, positions, side="right") - 1).astype(np.int64)
