"""Simulation of an engine's prefix cache, to say what an order of requests would hit.

The cache holds whole KV blocks, evicts the least recently used, and gives up the deepest block of a
path before its ancestors, as vLLM does. Requests run one after the other; a real engine runs many
at once, which only matters when the cache hardly holds the running ones.
"""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def block_paths(
    lcp: NDArray[np.int64], lengths: NDArray[np.int64], block_size: int
) -> list[list[int]]:
    """For requests in prefix order, the ids of their full KV blocks from the root down.

    Two requests have a block in common exactly if all tokens up to its end are equal.
    """
    paths: list[list[int]] = []
    path: list[int] = []
    fresh = 0
    for shared, length in zip(lcp // block_size, lengths // block_size, strict=True):
        new = int(length - shared)
        path = path[: int(shared)] + list(range(fresh, fresh + new))
        fresh += new
        paths.append(path)
    return paths


def simulated_hit_rate(
    paths: Iterable[list[int]],
    lengths: NDArray[np.int64],
    block_size: int,
    capacity_tokens: int,
) -> float:
    """Hit tokens over prompt tokens when requests with these block paths run in this order."""
    capacity = max(capacity_tokens // block_size, 1)
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for path, length in zip(paths, lengths, strict=True):
        usable = max(int(length) - 1, 0) // block_size  # the last token is always computed
        for block in path[:usable]:
            if block not in cached:
                break
            hits += 1
        for block in reversed(path):  # ancestors end up as the most recently used
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > capacity:
            cached.popitem(last=False)
    total = int(lengths.sum())
    return hits * block_size / total if total else 0.0
