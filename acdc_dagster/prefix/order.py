"""Prefix order and what follows from it: shared tokens, expected cache hits."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.prefix.sequences import Positions, Sequences, Tokens

# Tokens compared at a time where two sequences are looked through for their first difference.
_FIRST_LOOK, _LAST_LOOK, _GROWTH = 8, 128, 4


def sort_keys(sequences: Sequences) -> pl.Series:
    """Bytes that compare as the token sequences do: the ids, most significant byte first."""
    swapped = sequences.tokens.byteswap()
    return Sequences(swapped, sequences.offsets).as_binary()


def prefix_order(sequences: Sequences) -> Positions:
    """Positions of the sequences in lexicographic order, which is depth-first tree order.

    Equal sequences keep their given order. Polars sorts bytes fastest.
    """
    return sort_keys(sequences).arg_sort().to_numpy().astype(np.int64)


def shared_with_previous(sequences: Sequences) -> Positions:
    """LCP array: tokens that each sequence shares with the one before it; 0 for the first."""
    lcp = np.zeros(len(sequences), dtype=np.int64)
    if len(sequences) > 1:
        rows = np.arange(len(sequences), dtype=np.int64)
        lcp[1:] = common_prefixes(sequences, rows[:-1], rows[1:])
    return lcp


def common_prefixes(sequences: Sequences, left: Positions, right: Positions) -> Positions:
    """Leading tokens that sequence `left[i]` and sequence `right[i]` have in common, for each i.

    The first few tokens of all pairs are compared at once; then those that are equal so far, all at
    once where they are the fewer, else each by itself.
    """
    tokens, starts, lengths = sequences.tokens, sequences.offsets[:-1], sequences.lengths
    limit = np.minimum(lengths[left], lengths[right])
    found = limit.copy()
    active = np.flatnonzero(limit > 0)
    done, look = 0, _FIRST_LOOK
    while len(active) and look <= _LAST_LOOK:
        steps = np.arange(done, done + look, dtype=np.int64)
        last = len(tokens) - 1
        one = tokens[np.minimum(starts[left[active]][:, None] + steps, last)]
        other = tokens[np.minimum(starts[right[active]][:, None] + steps, last)]
        differs = one != other
        first = differs.argmax(axis=1)
        known = differs[np.arange(len(active)), first]
        hit = active[known]
        found[hit] = np.minimum(done + first[known], limit[hit])
        done += look
        before = len(active)
        active = active[~known & (limit[active] > done)]
        look = _LAST_LOOK + 1 if len(active) > before // 2 else look * _GROWTH
    ones, others = starts[left[active]] + done, starts[right[active]] + done
    rest = limit[active] - done
    shared: list[int] = []
    for one, other, size in zip(ones.tolist(), others.tolist(), rest.tolist(), strict=True):
        differs = tokens[one : one + size] != tokens[other : other + size]
        at = differs.argmax()
        shared.append(at if differs[at] else size)
    found[active] = done + np.array(shared, dtype=np.int64)
    return found


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
