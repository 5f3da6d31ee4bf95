"""Prefix order and what follows from it: shared tokens, expected cache hits.

All functions take token sequences as a list of int32 arrays of any lengths (0 too).
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


def prefix_order(tokens: Sequence[Tokens]) -> list[int]:
    """Positions of the sequences in lexicographic order, which is depth-first tree order.

    Equal sequences keep their given order. Bytes of big-endian ids compare as the ids do, and
    polars sorts bytes fastest.
    """
    keys = pl.Series([ids.astype(">u4").tobytes() for ids in tokens], dtype=pl.Binary)
    frame = pl.DataFrame({"key": keys}).with_row_index("at")
    return frame.sort("key", maintain_order=True)["at"].to_list()


def shared_with_previous(tokens: Sequence[Tokens]) -> NDArray[np.int64]:
    """LCP array: tokens that each sequence shares with the one before it; 0 for the first."""
    shared = np.zeros(len(tokens), dtype=np.int64)
    for at in range(1, len(tokens)):
        shared[at] = common_prefix(tokens[at - 1], tokens[at])
    return shared


def common_prefix(left: Tokens, right: Tokens) -> int:
    """Number of leading tokens that are equal."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def sharing(lcp: NDArray[np.int64], lengths: NDArray[np.int64]) -> float:
    """Share of prompt tokens that repeat a prefix of another request, in [0, 1).

    In prefix order the tokens beyond each LCP are exactly the distinct nodes of the prefix tree,
    so this is 1 - distinct nodes / tokens.
    """
    total = int(lengths.sum())
    return float(lcp.sum()) / total if total else 0.0


def hit_rate(lcp: NDArray[np.int64], lengths: NDArray[np.int64], block_size: int) -> float:
    """Highest possible prefix-cache hit rate: hit tokens over prompt tokens, in [0, 1).

    Sum of floor(min(LCP, length - 1) / B) * B over the prefix order. Whole KV blocks of B tokens
    are reused, and an engine always computes the last token of a prompt. Least-recently-used
    eviction reaches it in prefix order while the cache holds the running requests.
    """
    total = int(lengths.sum())
    reusable = np.minimum(lcp, np.maximum(lengths - 1, 0)) // block_size * block_size
    return float(reusable.sum()) / total if total else 0.0
