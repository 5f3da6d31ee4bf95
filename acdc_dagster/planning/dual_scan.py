"""An order for jobs with mixed lengths and little sharing: from both ends of the density.

Requests with long prompts and short answers keep the arithmetic units busy, requests with long
answers the memory. In prefix order they come in stretches of one kind. The dual scan of BlendServe
(ASPLOS 2026) sorts subtrees by the ratio of the two and runs the order from both ends at once, so
that both resources are in use all the time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DualScan:
    """An order and what it keeps.

    Attributes:
        order: int64[N], positions in prefix order in the sequence in which they should run.
        kept: Share of the shared prompt tokens that stays shared, 0 to 1, if the cache holds the
            paths of both ends.
    """

    order: Ints
    kept: float


def dual_scan(lcp: Ints, compute: Floats, memory: Floats, max_loss: float = 0.03) -> DualScan:
    """Alternate compute-heavy and memory-heavy subtrees so that both kinds of work progress alike.

    The prefix order is cut into blocks where least is shared, until the cuts together share
    `max_loss` of all shared tokens; cuts where nothing is shared are free. Blocks stay whole and in
    prefix order inside. One end takes those that need more of the job's computing than of its
    memory traffic, the most extreme first, the other end the rest likewise, and each advances as
    the other makes up for it.

    Args:
        lcp: int64[N], tokens shared with the previous request in prefix order; 0 first.
        compute: float64[N], arithmetic work of each request, any unit, positive.
        memory: float64[N], memory traffic of each request, any unit, positive; for a prompt of p
            and an answer of d tokens p * d + d^2 / 2 reads of KV entries.
        max_loss: Share of the shared tokens that may be lost, 0 to 1.
    """
    rows = len(lcp)
    if rows == 0:
        return DualScan(np.zeros(0, dtype=np.int64), 1.0)
    starts = _block_starts(lcp, max_loss)
    excess = compute / compute.sum() - memory / memory.sum()  # sums to 0 over the job
    work = compute / compute.sum() + memory / memory.sum()
    block_excess, block_work = np.add.reduceat(excess, starts), np.add.reduceat(work, starts)
    extreme = np.argsort(-np.abs(block_excess) / block_work, kind="stable")
    # How far its end has come when a block begins, in excess: the same scale at both ends.
    begun = np.zeros(len(starts))
    for end in (block_excess > 0, block_excess <= 0):
        blocks = extreme[end[extreme]]
        reached = np.cumsum(np.abs(block_excess[blocks]))
        begun[blocks] = reached - np.abs(block_excess[blocks])
    block = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows)))
    done = np.cumsum(work) - work
    within = (done - done[starts][block]) / block_work[block]
    progress = begun[block] + np.abs(block_excess[block]) * within
    lost, shared = int(lcp[starts].sum()), int(lcp.sum())
    order = np.lexsort((np.arange(rows), begun[block], progress))
    return DualScan(order, 1 - lost / shared if shared else 1.0)


def _block_starts(lcp: Ints, max_loss: float) -> Ints:
    """First rows of the blocks: where least is shared; among equals chosen evenly, by lot."""
    lot = np.random.default_rng(0).permutation(len(lcp))
    by_loss = np.lexsort((lot, lcp))
    affordable = np.cumsum(lcp[by_loss]) <= max_loss * int(lcp.sum())
    affordable |= lcp[by_loss] == 0
    return np.unique(np.append(0, by_loss[affordable]))
