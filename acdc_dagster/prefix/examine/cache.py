"""What an engine's prefix cache hits when the requests of a job run in some order.

The cache holds whole KV blocks, evicts the least recently used, and gives up the deepest block of a
path before its ancestors, as vLLM does. Requests run one after the other; a real engine runs many
at once, which only matters when the cache hardly holds the running ones.

All functions take the requests in prefix order: `lcp` (int64[N], tokens shared with the request
before; 0 first), `lengths` (int64[N], prompt tokens), the tokens in a block and the tokens that the
cache holds. For the prefix order itself `order.hit_rate` is the closed form.
"""

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.prefix.examine.tree import Ints, SharedEdges, shared_edges

Floats = NDArray[np.float64]


def simulated_hit_rate(
    lcp: Ints,
    lengths: Ints,
    block_size: int,
    capacity_tokens: int,
    order: Ints | None = None,
) -> float:
    """Hit tokens over prompt tokens, exactly, when the requests run in the given order.

    The blocks of a request that no later one has touched are the deep end of its path, and the
    cache drops them from the deepest up. So the state is a depth range for each request that has
    run, and a request costs one step for each shared edge on its path, not for each block.

    Args:
        order: int64[N], positions in prefix order in the sequence in which they run, each once; the
            prefix order if None.
    """
    blocks = lengths // block_size
    edges = shared_edges(lcp // block_size)
    usable = np.maximum(lengths - 1, 0) // block_size  # the last token is always computed
    sequence = np.arange(len(lengths)) if order is None else order
    capacity = max(capacity_tokens // block_size, 1)
    hits = _simulate(edges, blocks[sequence], usable[sequence], edges.deepest[sequence], capacity)
    total = int(lengths.sum())
    return hits * block_size / total if total else 0.0


def _simulate(edges: SharedEdges, blocks: Ints, usable: Ints, deepest: Ints, capacity: int) -> int:
    """Hit blocks of requests that run one after the other; numbers are ints in lists for speed."""
    sizes, tops, bottoms = edges.sizes.tolist(), edges.top.tolist(), edges.bottom.tolist()
    parents: list[int] = edges.parent.tolist()
    toucher: list[int] = [-1] * len(sizes)  # the last request that passed each edge
    paths: list[int] = blocks.tolist()
    starts: list[int] = deepest.tolist()
    kept = paths.copy()  # cached blocks that each request was the last to touch
    oldest = 0  # requests before this one keep nothing; this one keeps depths up to `reach`
    reach = paths[0] if paths else 0
    cached = hits = 0
    for now, (path, limit, edge) in enumerate(zip(paths, usable.tolist(), starts, strict=True)):
        found = 0
        while edge >= 0:
            touched = toucher[edge]
            if touched > oldest:
                size = sizes[edge]
                found += size
                kept[touched] -= size
            elif touched == oldest:
                size = min(bottoms[edge], reach) - tops[edge]
                if size > 0:
                    found += size
                    kept[touched] -= size
            toucher[edge] = now
            edge = parents[edge]
        hits += found if found < limit else limit
        cached += path - found
        while cached > capacity:
            excess = cached - capacity
            if kept[oldest] > excess:
                kept[oldest] -= excess
                reach -= excess
                cached = capacity
            else:
                cached -= kept[oldest]
                oldest += 1
                reach = paths[oldest]
    return hits


def predicted_hit_rate(lcp: Ints, lengths: Ints, block_size: int, capacity_tokens: int) -> float:
    """Expected hit tokens over prompt tokens when the requests run in a random order.

    Che's approximation (Che, Tung and Wang, 2002) over the shared edges of the block tree: a block
    stays for the same number T of requests whichever it is. In a random order of N requests the
    next of the k requests that pass an edge comes within T with probability
    p = 1 - (1 - T / N)^k, so that

        occupancy(T) = sum of size * p + T * mean private blocks = capacity
        hits         = sum of size * (k - 1) * p

    with k - 1 because the first pass of an edge cannot hit, and without the block that holds a
    prompt's last token. Off by less than 0.005 where the cache holds some dozens of requests; by
    a little more where it holds ten.
    """
    rows, total = len(lengths), int(lengths.sum())
    if not total:
        return 0.0
    edges = shared_edges(lcp // block_size)
    ends = np.where(edges.deepest >= 0, edges.bottom[edges.deepest], 0) if len(edges.top) else 0
    private = float((lengths // block_size - ends).sum()) / rows
    whole = (edges.deepest >= 0) & (ends * block_size == lengths)  # ends with a shared block
    recomputed = np.bincount(edges.deepest[whole], minlength=len(edges.top))
    passes, group = np.unique(edges.requests, return_inverse=True)
    size = np.bincount(group, edges.sizes, len(passes))
    hit = np.bincount(group, edges.sizes - recomputed / edges.requests, len(passes))
    capacity = max(capacity_tokens // block_size, 1)

    def reached(window: float) -> Floats:
        return 1.0 - np.power(1.0 - window / rows, passes, dtype=np.float64)

    low, high = 0.0, float(rows)
    for _ in range(60):
        middle = (low + high) / 2
        fits = float((size * reached(middle)).sum()) + private * middle <= capacity
        low, high = (middle, high) if fits else (low, middle)
    return float((hit * (passes - 1) * reached(high)).sum()) * block_size / total
