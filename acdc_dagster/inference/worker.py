"""The worker: answers one shard, commits in chunks, and can be killed at any moment."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event as Flag
from uuid import uuid4

from acdc_dagster.errors import BackendError, IncompleteError
from acdc_dagster.inference.ahead import read_ahead
from acdc_dagster.inference.contention import CoreWatch
from acdc_dagster.inference.dispatch import Dispatch
from acdc_dagster.inference.engines.process import VLLM, EngineDied, EngineProcess, Stopped
from acdc_dagster.inference.engines.protocol import Answer, unanswered
from acdc_dagster.inference.events import Event, Throttle
from acdc_dagster.inference.history import Ended, history_row, remember, remember_killed
from acdc_dagster.inference.left import Left, left_of, requests_of
from acdc_dagster.inference.meter import Meter
from acdc_dagster.inference.results import Results
from acdc_dagster.planning.plan import Plan, Shard
from acdc_dagster.tables import TableError, Tables

_TELL_SECONDS = 2.0
_WAIT = 0.5  # seconds between looks at signals and limits while the engine says nothing
_STARTS = 3  # in a row that may fail once an engine was up; the first one must succeed


@dataclass(frozen=True)
class WorkOrder:
    """Which shard of which partition to work on.

    Attributes:
        run_id: Of whoever ordered the work; recorded with each result.
        attempt: 1 for the partition's plan; from 2 on for that of its `retries`.
    """

    partition: str
    shard: int
    run_id: str
    attempt: int = 1


def work(
    order: WorkOrder,
    plan: Plan,
    tables: Tables,
    tell: Callable[[Event], None],
    stop: Flag,
    adapter: str = VLLM,
) -> Event:
    """Answer what is left of a shard.

    Args:
        order: The shard.
        plan: The partition's plan.
        tables: The job's tables.
        tell: Gets events: loading, running, progress every two seconds.
        stop: Set from outside to end early: requests that run may end within the plan's grace
            period, and all answers are committed.
        adapter: `module:class` of the engine.

    Returns:
        The finished event.

    Raises:
        Stopped: `stop` was set.
        BackendError: The engine does not start, or dies too often.
        IncompleteError: There is no such shard in the plan.
        ShardTakenError: Another worker has taken the shard over.
        TableError: The storage refused for too long; what was committed before stays.
    """
    if not 0 <= order.shard < len(plan.shards):
        raise IncompleteError(
            f"The plan of partition {order.partition!r} has no shard {order.shard}.",
            f"Materialise {tables.job}/inference for this partition again.",
        )
    shard = plan.shards[order.shard]
    left = left_of(tables, order.partition, shard, order.attempt)
    meter = Meter(shard, left.requests, plan.engine.max_num_seqs)
    if left.requests:
        shift = _Shift(order, plan, tables, meter, tell, stop, adapter)
        try:
            shift.run(shard, left)
        except Exception as error:
            with suppress(TableError):  # the first fault is the one to tell
                shift.remember("stopped" if isinstance(error, Stopped) else "failed")
            raise
        shift.remember("complete")
    if order.attempt == 1:  # which looks after later attempts too, as soon as it runs again
        remember_killed(tables, order.partition, plan, shard.number)
    return meter.event("finished")


class _Shift:
    """One run of a worker, from its first engine to its last commit."""

    def __init__(
        self,
        order: WorkOrder,
        plan: Plan,
        tables: Tables,
        meter: Meter,
        tell: Callable[[Event], None],
        stop: Flag,
        adapter: str,
    ) -> None:
        self._order = order
        self._plan = plan
        self._tables = tables
        self._meter = meter
        self._tell = tell
        self._stop = stop
        self._adapter = adapter
        self._trouble = ""
        self._stop_at: float | None = None
        self._process: EngineProcess | None = None
        self.worker = uuid4().hex[:12]
        self.engine = self.device = ""
        self.contended = False
        self._cores: CoreWatch | None = None

    def run(self, shard: Shard, left: Left) -> None:
        """Answer all that is left. Raises as `work` does."""
        order, plan = self._order, self._plan
        size = plan.engine.max_num_seqs
        shards = len(plan.shards)
        app_id = f"acdc/{self._tables.job}/{order.partition}/shard-{shard.number}-of-{shards}"
        if order.attempt > 1:
            app_id += f"/attempt-{order.attempt}"
        appender = self._tables.appender("inference", app_id)
        appender.claim()
        requests = read_ahead(requests_of(self._tables, order.partition, left, size), 4 * size)
        try:
            # Made first, it has the first requests read while the engine starts.
            dispatch = Dispatch(requests, size, plan.limits.request_seconds)
            engine = self._started()
            self._tell(self._meter.event("running"))
            stamp = {
                "partition_key": order.partition,
                "attempt": order.attempt,
                "shard": shard.number,
                "worker": self.worker,
                "engine": engine.name,
                "run_id": order.run_id,
            }
            results = Results(appender, stamp, plan.commit, plan.limits.storage_seconds)
            try:
                self._answer_all(dispatch, engine, results)
            finally:  # whatever ends the work, no answer is lost with it
                if self._process is not None:
                    self._process.dismiss()
                if self._stop.is_set():
                    results.give_up()
                results.close()
                self._meter.work_ended()
        finally:
            requests.close()
            self.contended = self._cores is not None and self._cores.contended
            if self._process is not None:
                self._process.close()
        if dispatch.more:
            raise Stopped

    def remember(self, ended: Ended) -> None:
        """Leave a row in `history`, unless no engine was up. Raises TableError."""
        if not self.engine:
            return
        order, plan, meter = self._order, self._plan, self._meter
        ran = (self.engine, self.device)
        row = history_row(
            *(order.partition, order.run_id, plan, meter, *ran, ended), contended=self.contended
        )
        remember(self._tables, self.worker, row)

    def _answer_all(self, dispatch: Dispatch, engine: EngineProcess, results: Results) -> None:
        """Answer until nothing is left or it is time to stop."""
        throttle = Throttle(_TELL_SECONDS)
        while dispatch.more and not self._has_to_end(dispatch, engine):
            death: EngineDied | None = None
            try:
                answers = self._step(dispatch, engine, results)
            except EngineDied as error:
                death = error
                answers = self._after(death, dispatch)
            results.add(answers)
            self._meter.answered(answers)
            if death is not None:
                if not dispatch.more or self._stop.is_set():
                    break
                engine = self._started(death)
                continue
            if answers:
                self._trouble = ""
            if throttle.ready():
                self._tell(self._meter.event("progress", results.trouble or self._trouble))

    def _step(self, dispatch: Dispatch, engine: EngineProcess, results: Results) -> list[Answer]:
        """Keep the engine full, and hear what it has done."""
        if not self._stop.is_set() and not results.behind:
            taken = dispatch.take()
            if taken:
                engine.add(taken)
        stepped = engine.receive(_WAIT, busy=dispatch.given > 0)
        answers: list[Answer] = []
        if stepped is not None:
            self._meter.stepped(stepped)
            answers = [a for a in stepped.answers if dispatch.answered(a.request_hash)]
        overdue = dispatch.overdue()
        if overdue:
            engine.abort(overdue)
            seconds = self._plan.limits.request_seconds
            reason = f"no answer within the {seconds} s that limits.request_seconds allows"
            answers += [unanswered(name, "transient", reason) for name in overdue]
        return answers

    def _has_to_end(self, dispatch: Dispatch, engine: EngineProcess) -> bool:
        """Whether to stop now; requests that run have a grace period first."""
        if not self._stop.is_set():
            return False
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._plan.limits.grace_seconds
            engine.abort(dispatch.waiting())
        return dispatch.given == 0 or time.monotonic() >= self._stop_at

    def _after(self, death: EngineDied, dispatch: Dispatch) -> list[Answer]:
        """What follows from a death for the requests that the engine had.

        Raises:
            BackendError: It was one too many.
        """
        self._meter.engine_died()
        culprit = dispatch.died()
        sys.stderr.write(f"{death.reason} It is started again.\n")
        if self._meter.restarts > self._plan.limits.engine_restarts:
            raise _died_too_often(death, self._meter.restarts)
        if culprit is None:
            return []
        reason = f"the engine dies of this request: {death.reason}"
        return [unanswered(culprit, "permanent", reason)]

    def _started(self, death: EngineDied | None = None) -> EngineProcess:
        """An engine that is up; after a death, another one.

        Raises:
            BackendError: It does not start.
            Stopped: It was time to stop before it was up.
        """
        self._trouble = death.reason if death is not None else ""
        self._tell(self._meter.event("loading", self._trouble))
        limits = self._plan.limits
        tries = 1 if death is None else _STARTS
        while True:
            tries -= 1
            try:
                engine = EngineProcess(
                    self._plan.engine,
                    self._adapter,
                    start_seconds=limits.start_seconds,
                    stall_seconds=limits.stall_seconds,
                    stop=self._stop,
                )
                break
            except EngineDied as failed:
                if not tries:
                    raise _does_not_start(failed) from failed
            except BackendError:
                if not tries:
                    raise
            self._stop.wait(2.0 ** (_STARTS - tries))  # memory of the dead one may not be free yet
        self._process = engine
        self.engine, self.device = engine.name, engine.device
        self._cores = CoreWatch(engine.pid)
        self._meter.engine_is_up()
        return engine


def _does_not_start(death: EngineDied) -> BackendError:
    return BackendError(
        f"{death.reason} Its last lines:\n{death.last_lines}",
        "Check the model's folder and the engine settings in the environment's YAML (memory, "
        "context length, dtype). Signal 9 is often the system out of memory.",
    )


def _died_too_often(death: EngineDied, times: int) -> BackendError:
    return BackendError(
        f"The engine died {times} times. {death.reason} Its last lines:\n{death.last_lines}",
        "Run the partition again: only what is missing is computed. If it goes on, lower "
        "max_num_seqs or kv_cache_gib (signal 9 is often the system out of memory), or raise "
        "limits.engine_restarts.",
    )
