"""The worker: answers one shard, commits in chunks, and can be killed at any moment.

What is left to do is always `sorted_requests` minus `inference`, so that a first run, a run after a
crash and the run of the next night are the same code.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import polars as pl
from msgspec import structs

from acdc_dagster.errors import IncompleteError
from acdc_dagster.inference.engine import Answer, Engine, Request, RequestRefused
from acdc_dagster.inference.events import Event, Throttle
from acdc_dagster.planning.plan import EngineSettings, Plan, Shard
from acdc_dagster.tables import Appender, Tables

# Requests given to the engine for each that it can run at once: a little over one, so that a free
# place never waits for the worker.
_WINDOW = 2
# Requests read from storage at a time.
_READ = 2048


@dataclass(frozen=True)
class WorkOrder:
    """Which shard of which partition to work on.

    Attributes:
        run_id: Of whoever ordered the work; recorded with each result.
    """

    partition: str
    shard: int
    run_id: str


class Interrupted(Exception):
    """The worker was told to stop; what was answered is committed."""


def pending(tables: Tables, partition: str, shard: Shard) -> pl.DataFrame:
    """Position and hash of the shard's requests that have no final result yet, in prefix order.

    A result counts wherever it was computed: a hash covers all that shapes the answer, and a
    request whose answers are meant to differ has a hash of its own.
    """
    wanted = (
        tables.scan("sorted_requests", partition)
        .filter(pl.col("position").is_between(shard.start, shard.stop, closed="left"))
        .select("position", "request_hash")
    )
    done = tables.scan("inference").select("request_hash")
    return tables.collect(wanted.join(done, on="request_hash", how="anti").sort("position"))


def work(
    order: WorkOrder,
    plan: Plan,
    tables: Tables,
    start_engine: Callable[[EngineSettings], Engine],
    tell: Callable[[Event], None],
    stop: threading.Event,
) -> Event:
    """Answer what is left of a shard.

    Args:
        order: The shard.
        plan: The partition's plan.
        tables: The job's tables.
        start_engine: Called once, and only if something is left.
        tell: Gets events: loading, running, progress every two seconds.
        stop: Set from outside to end early, after a last commit.

    Returns:
        The finished event.

    Raises:
        Interrupted: `stop` was set.
        IncompleteError: There is no such shard in the plan.
        ShardTakenError: Another worker is committing to this shard.
        TableError: The storage refused; what was committed before stays.
    """
    if not 0 <= order.shard < len(plan.shards):
        raise IncompleteError(
            f"The plan of partition {order.partition!r} has no shard {order.shard}.",
            f"Materialise {tables.job}/inference for this partition again.",
        )
    shard = plan.shards[order.shard]
    left = pending(tables, order.partition, shard)
    now = Event("running", shard.number, done=shard.requests - left.height, total=shard.requests)
    if left.is_empty():
        return replace(now, kind="finished")
    app_id = f"acdc/{tables.job}/{order.partition}/shard-{shard.number}-of-{len(plan.shards)}"
    appender = tables.appender("inference", app_id)
    tell(replace(now, kind="loading"))
    engine = start_engine(plan.engine)
    try:
        tell(now)
        feed = _Feed(engine, _requests(tables, order.partition, left), plan.engine.max_num_seqs)
        chunks = _Chunks(appender, order, shard, engine.name, plan)
        began, throttle = time.monotonic(), Throttle(2.0)
        try:
            while feed.more() and not stop.is_set():
                answers = feed.step()
                chunks.add(answers, feed.refused())
                now = replace(
                    now,
                    done=shard.requests - left.height + chunks.rows,
                    computed=chunks.rows,
                    prompt_tokens=now.prompt_tokens + sum(a.prompt_tokens for a in answers),
                    cached_tokens=now.cached_tokens + sum(a.cached_tokens for a in answers),
                    completion_tokens=now.completion_tokens
                    + sum(a.completion_tokens for a in answers),
                    seconds=time.monotonic() - began,
                )
                if throttle.ready():
                    tell(replace(now, kind="progress"))
        finally:  # an engine that dies takes no answer with it
            chunks.commit()
    finally:
        engine.close()
    if feed.more():
        raise Interrupted
    return replace(now, kind="finished")


def _requests(tables: Tables, partition: str, left: pl.DataFrame) -> Iterator[Request]:
    """The requests that are left, read a range at a time."""
    for some in left.iter_slices(_READ):
        low, high = some["position"][0], some["position"][-1]
        wanted = (
            tables.scan("sorted_requests", partition)
            .filter(pl.col("position").is_between(low, high))
            .select("position", "request_hash", "token_ids", "prompt_tokens", "sampling")
            .with_columns(max_tokens=0, next_lcp=0)
            .join(some.lazy(), on=["position", "request_hash"], how="semi")
            .sort("position")
        )
        rows = tables.collect(wanted.drop("position"))
        for row in rows.iter_rows():
            yield Request(*row)


class _Feed:
    """Keeps the engine's queue a little fuller than it can run, in the given order."""

    def __init__(self, engine: Engine, requests: Iterator[Request], max_num_seqs: int) -> None:
        self._engine = engine
        self._requests = requests
        self._window = _WINDOW * max_num_seqs
        self._refused: list[tuple[str, str]] = []
        self._next = next(requests, None)

    def more(self) -> bool:
        """Whether anything is not answered yet."""
        return self._next is not None or self._engine.unfinished > 0

    def step(self) -> list[Answer]:
        """Fill the window, let the engine do a step."""
        while self._next is not None and self._engine.unfinished < self._window:
            try:
                self._engine.add(self._next)
            except RequestRefused as error:
                self._refused.append((self._next.request_hash, str(error)))
            self._next = next(self._requests, None)
        return self._engine.step() if self._engine.unfinished else []

    def refused(self) -> list[tuple[str, str]]:
        """Hash and reason of the requests refused since the last call."""
        refused, self._refused = self._refused, []
        return refused


class _Chunks:
    """Collects results and commits them when a chunk is full or its time is up."""

    def __init__(
        self, appender: Appender, order: WorkOrder, shard: Shard, engine: str, plan: Plan
    ) -> None:
        self._appender = appender
        self._stamp: dict[str, Any] = {
            "partition_key": order.partition,
            "attempt": 1,
            "shard": shard.number,
            "worker": uuid4().hex[:12],
            "engine": engine,
            "run_id": order.run_id,
        }
        self._limit = plan.commit.rows
        self._throttle = Throttle(plan.commit.seconds)
        self._rows: list[dict[str, Any]] = []
        self.rows = 0

    def add(self, answers: list[Answer], refused: list[tuple[str, str]]) -> None:
        self._rows.extend({**structs.asdict(answer), **_failure(answer)} for answer in answers)
        now = datetime.now(UTC)
        self._rows.extend(
            {
                "request_hash": request_hash,
                "error_class": "permanent",
                "error_message": reason,
                "started_at": now,
                "finished_at": now,
            }
            for request_hash, reason in refused
        )
        self.rows += len(answers) + len(refused)
        if len(self._rows) >= self._limit or (self._rows and self._throttle.ready()):
            self.commit()

    def commit(self) -> None:
        if not self._rows:
            return
        stamp = {**self._stamp, "chunk": self._appender.next_chunk}
        self._appender.append([{**row, **stamp} for row in self._rows])
        self._rows = []


def _failure(answer: Answer) -> dict[str, str | None]:
    """An answer that neither ended nor was cut is none, whatever text came with it."""
    if answer.finish_reason in ("stop", "length"):
        return {"error_class": None, "error_message": None}
    reason = f"the engine gave the request up: finish_reason {answer.finish_reason}"
    return {"error_class": "permanent", "error_message": reason}
