"""The live numbers of a worker, counted from its answers and its engine's state."""

import time
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest

from msgspec import structs

from acdc_dagster.inference.engines.protocol import Answer, EngineState
from acdc_dagster.inference.engines.wire import Stepped
from acdc_dagster.inference.events import Event, Kind
from acdc_dagster.planning.plan import Shard

_RECENT = 30.0  # seconds over which rates are taken


class Meter:
    """Counts, and makes events of the counts.

    Args:
        shard: The shard.
        left: Requests of it without a result when the worker started.
        max_num_seqs: Requests that the engine runs at once.
    """

    def __init__(self, shard: Shard, left: int, max_num_seqs: int) -> None:
        self._event = Event(
            "running", shard.number, done=shard.requests - left, total=shard.requests
        )
        self._size = max_num_seqs
        self._up: float | None = None
        self._state, self._past = EngineState(), EngineState()
        self._running = self._past_running = 0.0  # requests times seconds
        self._since: float | None = None
        self._ended: float | None = None
        self._past_up = 0.0
        self._recent: deque[tuple[float, Event]] = deque()
        self.restarts = 0
        self.most_kv_usage = 0.0

    def engine_is_up(self) -> None:
        """Note that an engine started, the first or another one."""
        now = time.monotonic()
        self._up = self._up or now
        self._since = now

    def engine_died(self) -> None:
        """Note that the engine is gone; what it counted stays counted."""
        self.restarts += 1
        self._past = self._counts()
        self._state = EngineState()
        self._past_running, self._running = self._past_running + self._running, 0.0
        self._past_up, self._since = self._up_seconds(), None

    def work_ended(self) -> None:
        """Note that all is committed; the time that it takes to end is not counted."""
        self._ended = time.monotonic()

    def answered(self, answers: Sequence[Answer]) -> None:
        """Count answers."""
        event = self._event
        self._event = structs.replace(
            event,
            done=event.done + len(answers),
            computed=event.computed + len(answers),
            failed=event.failed + sum(a.error_class is not None for a in answers),
            prompt_tokens=event.prompt_tokens + sum(a.prompt_tokens or 0 for a in answers),
            cached_tokens=event.cached_tokens + sum(a.cached_tokens or 0 for a in answers),
            completion_tokens=event.completion_tokens
            + sum(a.completion_tokens or 0 for a in answers),
        )

    def stepped(self, told: Stepped) -> None:
        """Take note of the engine's state."""
        self._state, self._running = told.state, told.running_seconds
        self.most_kv_usage = max(self.most_kv_usage, told.state.kv_usage)

    def event(self, kind: Kind, trouble: str = "") -> Event:
        """The numbers as they are now."""
        now = time.monotonic()
        counts = self._counts()
        event = structs.replace(
            self._event,
            kind=kind,
            trouble=trouble,
            generated_tokens=counts.generated_tokens,
            seconds=(self._ended or now) - self._up if self._up is not None else 0.0,
            running=counts.running,
            waiting=counts.waiting,
            batch_fill=self._batch_fill(),
            kv_usage=counts.kv_usage,
            preemptions=counts.preemptions,
            drafts=counts.drafts,
            accepted=counts.accepted,
            restarts=self.restarts,
        )
        self._recent.append((now, event))
        while len(self._recent) > 2 and now - self._recent[0][0] > _RECENT:
            self._recent.popleft()
        since, earlier = self._recent[0]
        if now == since:
            return event
        rate = (event.computed - earlier.computed) / (now - since)
        return structs.replace(
            event,
            requests_per_second=rate,
            prompt_tokens_per_second=(_uncached(event) - _uncached(earlier)) / (now - since),
            generated_tokens_per_second=(event.generated_tokens - earlier.generated_tokens)
            / (now - since),
            seconds_left=(event.total - event.done) / rate if rate else 0.0,
        )

    def _batch_fill(self) -> float:
        up = self._up_seconds()
        return (self._past_running + self._running) / (self._size * up) if up else 0.0

    def _up_seconds(self) -> float:
        """Seconds for which an engine was up."""
        now = self._ended or time.monotonic()
        return self._past_up + (now - self._since if self._since is not None else 0.0)

    def _counts(self) -> EngineState:
        """The state, with the counts of the engines that died."""
        now, past = self._state, self._past
        places = zip_longest(now.accepted, past.accepted, fillvalue=0)
        return structs.replace(
            now,
            generated_tokens=now.generated_tokens + past.generated_tokens,
            preemptions=now.preemptions + past.preemptions,
            drafts=now.drafts + past.drafts,
            accepted=[sum(place) for place in places],
        )


def _uncached(event: Event) -> int:
    return event.prompt_tokens - event.cached_tokens
