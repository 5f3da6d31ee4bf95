"""The largest shared prefixes of a job: which common beginnings its sharing comes from."""

from dataclasses import dataclass

import numpy as np

from acdc_dagster.prefix.examine.tree import Ints, shared_edges


@dataclass(frozen=True)
class SharedPrefix:
    """A beginning that a contiguous range of the prefix order has in common.

    Attributes:
        first: Position of its first request in prefix order.
        requests: Requests that begin with it.
        tokens: Its length.
        tokens_saved: Tokens that need not be computed because of it, beyond what the other listed
            prefixes already save. Over a list they add up to what the list saves together.
    """

    first: int
    requests: int
    tokens: int
    tokens_saved: int


def top_groups(
    lcp: Ints, lengths: Ints, at_most: int = 10, min_share: float = 0.01
) -> list[SharedPrefix]:
    """The shared prefixes that save most, the best first, chosen greedily.

    A prefix of d tokens and c requests that lies between the listed prefixes of d_above < d tokens
    above it and those of c_i requests below it adds (d - d_above) * (c - 1 - sum of (c_i - 1))
    saved tokens. One that adds little to its parent or to its children is therefore not listed.

    Args:
        lcp: int64[N], tokens shared with the previous request in prefix order; 0 first.
        lengths: int64[N], prompt tokens.
        at_most: Prefixes wanted.
        min_share: A listed prefix adds at least this share of all prompt tokens.
    """
    edges = shared_edges(lcp)
    depth, requests = edges.bottom, edges.requests
    covered = np.zeros_like(depth)  # depth of the deepest listed prefix above
    counted = np.zeros_like(depth)  # sum of (requests - 1) of the listed prefixes right below
    needed = max(min_share * int(lengths.sum()), 1)
    found: list[SharedPrefix] = []
    while len(found) < at_most and len(depth):
        adds = (depth - covered) * (requests - 1 - counted)
        best = int(adds.argmax())
        if adds[best] < needed:
            break
        found.append(
            SharedPrefix(
                first=int(edges.first[best]),
                requests=int(requests[best]),
                tokens=int(depth[best]),
                tokens_saved=int(adds[best]),
            )
        )
        above = int(edges.parent[best])
        while above >= 0 and depth[above] > covered[best]:
            counted[above] += requests[best] - 1 - counted[best]
            above = int(edges.parent[above])
        below = slice(best, int(np.searchsorted(edges.first, int(edges.stop[best]))))
        covered[below] = np.maximum(covered[below], depth[best])
    return found
