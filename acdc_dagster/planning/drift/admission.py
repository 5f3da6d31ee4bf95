"""Cohorts that close by admission: what may be compared while a job runs."""

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.planning.plan import Shard
from acdc_dagster.planning.strata import sizes_of


def closed(done: NDArray[np.bool_], shards: list[Shard]) -> NDArray[np.bool_]:
    """Positions before the first one of their shard that has no result yet, bool[N].

    A worker admits its shard in order, so these are its oldest requests, long answers and short.
    What has a result beyond them is left out: among requests in flight the short ones end first,
    and the first twentieth to end has answers of a half to a quarter of the true mean.

    Args:
        done: bool[N], whether there is a result, by position in prefix order.
        shards: Of the plan.
    """
    found = np.zeros(len(done), dtype=bool)
    for shard in shards:
        part = done[shard.start : shard.stop]
        end = len(part) if part.all() else int(part.argmin())
        found[shard.start : shard.start + end] = True
    return found


def whole_strata(closed: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the strata all of whose requests are closed.

    Only these are compared: within a stratum the order is not at random either.
    """
    count = np.add.reduceat(closed.astype(np.int64), starts) if len(starts) else starts
    return np.flatnonzero(count == sizes_of(starts, len(closed))).astype(np.int64)
