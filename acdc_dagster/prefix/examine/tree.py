"""The prefix tree of a job as arrays, read off the LCP array of its prefix order.

In prefix order the requests below a node of the tree are a contiguous range, so a node is a range
and a depth, and nothing but the LCP array is needed to list them all.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SharedEdges:
    """The edges of the compressed prefix tree that two or more requests pass, parents first.

    Edge `e` stands for the depths `top[e] < depth <= bottom[e]` of the requests at the positions
    `first[e] <= position < stop[e]`: all of them, and no others, have these tokens (or blocks) in
    common. What a request has beyond its deepest shared edge is its alone.

    Attributes:
        top: int64[E], depth where the edge begins.
        bottom: int64[E], depth where it ends.
        first: int64[E], position of the first request that passes it.
        stop: int64[E], position after the last one.
        parent: int64[E], the edge above, which has a smaller index; -1 at the root.
        deepest: int64[N], the deepest edge that each request passes; -1 if it shares nothing.
    """

    top: Ints
    bottom: Ints
    first: Ints
    stop: Ints
    parent: Ints
    deepest: Ints

    @property
    def sizes(self) -> Ints:
        """int64[E], tokens or blocks along each edge."""
        return self.bottom - self.top

    @property
    def requests(self) -> Ints:
        """int64[E], requests that pass each edge."""
        return self.stop - self.first


def shared_edges(lcp: Ints) -> SharedEdges:
    """The shared edges of a tree, in the unit of `lcp` (tokens, or blocks if it was divided).

    The LCP intervals of Abouelhoda, Kurtz and Ohlebusch (2004), with one stack in O(N).

    Args:
        lcp: int64[N], what each request shares with the one before it in prefix order; 0 first.
    """
    rows = len(lcp)
    first: list[int] = []
    stop: list[int] = []
    bottom: list[int] = []
    parent: list[int] = []
    opened = [-1] * (rows + 1)  # the edge that ends at the depth shared across each border
    path: list[int] = []
    depth = 0  # where the last edge of `path` ends
    borders = [*lcp[1:].tolist(), 0] if rows else []
    for at, shared in enumerate(borders, start=1):
        if shared != depth:
            start, below = at - 1, -1
            while depth > shared:
                below = path.pop()
                stop[below] = at
                start = first[below]
                depth = bottom[path[-1]] if path else 0
            if depth < shared:
                edge = len(first)
                first.append(start)
                stop.append(rows)
                bottom.append(shared)
                parent.append(path[-1] if path else -1)
                if below >= 0:
                    parent[below] = edge
                path.append(edge)
                depth = shared
        opened[at] = path[-1] if path else -1
    return _parents_first(lcp, first, stop, bottom, parent, opened)


def _parents_first(
    lcp: Ints,
    first: list[int],
    stop: list[int],
    bottom: list[int],
    parent: list[int],
    opened: list[int],
) -> SharedEdges:
    starts, bottoms = np.array(first, dtype=np.int64), np.array(bottom, dtype=np.int64)
    order = np.lexsort((bottoms, starts))
    rank = np.full(len(order) + 1, -1, dtype=np.int64)  # the last place stands for "none"
    rank[order] = np.arange(len(order))
    parents = rank[np.array(parent, dtype=np.int64)[order]]
    ends = bottoms[order]
    before = rank[np.array(opened, dtype=np.int64)]
    follows = np.append(lcp[1:], 0)[: len(lcp)]
    return SharedEdges(
        top=np.where(parents >= 0, ends[parents], 0) if len(ends) else ends,
        bottom=ends,
        first=starts[order],
        stop=np.array(stop, dtype=np.int64)[order],
        parent=parents,
        deepest=np.where(lcp >= follows, before[:-1], before[1:]),
    )
