"""What is left of a shard, and the order in which it runs.

What is left is always `sorted_requests` (or `retries`) minus `inference`, so that a first run, a
run after a crash and the run of the next night are the same code.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.failures import counts_for
from acdc_dagster.inference.engines.protocol import Request
from acdc_dagster.inference.image_reader import ImageReader
from acdc_dagster.planning.plan import Shard
from acdc_dagster.schemas import TableName
from acdc_dagster.tables import Tables

# Hashes compared at a time; each takes about 100 bytes.
_COMPARED = 2**21
# At most so many requests start before their place; they are held in memory.
_EARLY = 1024
_COLUMNS = ["position", "request_hash", "token_ids", "prompt_tokens", "sampling", "max_tokens"]
_IMAGES = "images"


@dataclass(frozen=True)
class Left:
    """Which requests of a shard have no result yet; nine bytes of memory a request.

    Attributes:
        table: Where the requests are.
        shard: The range of positions.
        wanted: bool[N]; whether the request has no result.
        max_tokens: int32[N]; most tokens of its answer.
        lcp: int32[N]; prompt tokens shared with the request before it.
    """

    table: TableName
    shard: Shard
    wanted: NDArray[np.bool_]
    max_tokens: NDArray[np.int32]
    lcp: NDArray[np.int32]

    @property
    def requests(self) -> int:
        """How many are left."""
        return int(self.wanted.sum())

    def next_lcp(self) -> NDArray[np.int32]:
        """int32[N]; prompt tokens that a request shares with the next one that is left."""
        shared, rows = np.zeros_like(self.lcp), np.flatnonzero(self.wanted)
        if len(rows) > 1:
            shared[rows[:-1]] = np.minimum.reduceat(self.lcp[: rows[-1] + 1], rows[:-1] + 1)
        return shared


def left_of(tables: Tables, partition: str, shard: Shard, attempt: int = 1) -> Left:
    """What is left of a shard.

    An answer counts wherever it was computed: a hash covers all that shapes it, and a request whose
    answers are meant to differ has a hash of its own. For failures see `failures.counts_for`.

    Args:
        tables: The job's tables.
        partition: The partition key.
        shard: The shard: of `sorted_requests`; of `retries` from the second attempt on.
        attempt: From 1. A later one counts only its own results.
    """
    table: TableName = "sorted_requests" if attempt == 1 else "retries"
    wanted = np.ones(shard.requests, dtype=np.bool_)
    max_tokens, lcp = np.zeros(shard.requests, np.int32), np.zeros(shard.requests, np.int32)
    asked = (
        tables.scan(table, partition)
        .filter(pl.col("position").is_between(shard.start, shard.stop, closed="left"))
        .select("position", "request_hash", pl.col("max_tokens").fill_null(0), "lcp")
    )
    results = tables.scan("inference").filter(counts_for(partition), pl.col("attempt") >= attempt)
    done = results.select("request_hash")
    for low, high in _hash_ranges(shard.requests + tables.count("inference")):
        within = pl.col("request_hash").str.head(2).is_between(pl.lit(low), pl.lit(high))
        some = asked.filter(within)
        is_done = pl.lit(True).alias("is_done")
        found = tables.collect(
            some.join(
                done.filter(within).unique().with_columns(is_done), on="request_hash", how="left"
            ).select("position", "max_tokens", "lcp", pl.col("is_done").is_null().alias("wanted"))
        )
        at = found["position"].to_numpy() - shard.start
        wanted[at] = found["wanted"].to_numpy()
        max_tokens[at], lcp[at] = found["max_tokens"].to_numpy(), found["lcp"].to_numpy()
    return Left(table, shard, wanted, max_tokens, lcp)


def _hash_ranges(hashes: int) -> Iterator[tuple[str, str]]:
    """Ranges of the first two hexadecimal digits, each with as many hashes as are compared."""
    parts = min(-(-hashes // _COMPARED), 256)
    bounds = [256 * part // parts for part in range(parts + 1)]
    for low, high in pairwise(bounds):
        yield f"{low:02x}", f"{high - 1:02x}"


def starts_early(left: Left, at_once: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Requests that would outlast all that follow them, and the positions that they start before.

    With L the longest answer and W requests at once, the requests from position p on take about

        R(p) = sum of L from p on / W

    steps. A request with L > R(p) at its own place would run on alone at the end, so it starts
    where R is still L. (List scheduling with the longest jobs first, applied to the tail only:
    everywhere else the prefix order stays.)

    Returns:
        int64[K] positions and int64[K] the position before which each starts, sorted by the second;
        the K longest if there are more than a thousand.
    """
    rows = np.flatnonzero(left.wanted)
    length = left.max_tokens[rows].astype(np.int64)
    remaining = np.cumsum(length[::-1])[::-1] / max(at_once, 1)
    # remaining falls, so the first row from which on less than L remains:
    place = np.searchsorted(-remaining, -length, side="right")
    early = np.flatnonzero(place < np.arange(len(rows)))
    # Rows of the same length that follow one another to the same place stay where they are.
    early = early[length[early] > length[np.minimum(place[early], len(rows) - 1)]]
    early = early[np.argsort(-length[early], kind="stable")[:_EARLY]]
    early = early[np.argsort(place[early], kind="stable")]
    return rows[early] + left.shard.start, rows[place[early]] + left.shard.start


def requests_of(tables: Tables, partition: str, left: Left, at_once: int) -> Iterator[Request]:
    """The requests that are left, in prefix order but for those that start early.

    Args:
        tables: The job's tables.
        partition: The partition key.
        left: What is left.
        at_once: Requests that the engine runs at once.
    """
    moved, before = starts_early(left, at_once)
    places = dict(zip(moved.tolist(), before.tolist(), strict=True))
    early, in_place = np.zeros_like(left.wanted), left.wanted.copy()
    early[moved - left.shard.start], in_place[moved - left.shard.start] = True, False
    next_lcp = left.next_lcp()
    ahead: dict[int, list[Request]] = {}
    for position, request in _read(tables, partition, left, early, next_lcp):
        ahead.setdefault(places[position], []).append(request)
    for position, request in _read(tables, partition, left, in_place, next_lcp):
        for place in sorted(place for place in ahead if place <= position):
            yield from ahead.pop(place)
        yield request
    for place in sorted(ahead):
        yield from ahead[place]


def _read(
    tables: Tables,
    partition: str,
    left: Left,
    wanted: NDArray[np.bool_],
    next_lcp: NDArray[np.int32],
) -> Iterator[tuple[int, Request]]:
    """The wanted requests with their positions, in order."""
    if not wanted.any():
        return
    first = left.shard.start
    before = np.append(0, np.cumsum(wanted))

    def holds_some(low: int, high: int) -> bool:
        low, high = max(low - first, 0), min(high - first, len(wanted) - 1)
        return low <= high and bool(before[high + 1] > before[low])

    images = ImageReader(tables, partition)
    for frame in tables.in_order(left.table, partition, [*_COLUMNS, _IMAGES], holds_some):
        at = frame["position"].to_numpy() - first
        inside = (at >= 0) & (at < len(wanted))
        inside[inside] = wanted[at[inside]]
        rows = frame.filter(pl.Series(inside))
        shown = images.of_rows(rows[_IMAGES])
        for (position, *fields), seen in zip(rows[_COLUMNS].iter_rows(), shown, strict=True):
            shared = int(next_lcp[position - first])
            yield position, Request(*fields, next_lcp=shared, images=seen)
