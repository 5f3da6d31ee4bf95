"""What a worker tells whoever started it: one JSON object a line on its standard output.

One schema for all backends: a child process' pipe and a pod's log carry the same lines. Everything
else, the engine's log included, goes to standard error.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

Kind = Literal["loading", "running", "progress", "finished", "failed"]


class Event(Struct, frozen=True, forbid_unknown_fields=True):
    """One line. Counts are of this run of the worker where nothing else is said.

    Attributes:
        kind: loading (the engine starts), running (it is up), progress, finished or failed.
        done: Requests of the shard answered in this or an earlier run.
        total: Requests of the shard.
        computed: Requests answered, and committed or about to be.
        failed: Of those, without an answer.
        prompt_tokens: Of the answered requests,
        cached_tokens: those of them that the prefix cache held,
        completion_tokens: and those of their answers.
        generated_tokens: Tokens made, of requests without an answer yet too.
        seconds: Since the engine was first up, until all is committed.
        requests_per_second: In the last half minute; so the next two:
        prompt_tokens_per_second: computed, not cached;
        generated_tokens_per_second: of all requests.
        seconds_left: At that rate; 0 if unknown.
        running: Requests in the engine's batch,
        waiting: and those that it has beside them.
        batch_fill: Mean of running / max_num_seqs while an engine was up, 0 to 1.
        kv_usage: Share of the KV memory in use, 0 to 1.
        preemptions: Requests put back for want of KV memory.
        drafts: Times that tokens were speculated,
        accepted: and accepted tokens by position in the draft.
        restarts: Times that the engine died or hung and was started again.
        trouble: What goes wrong while it is tried again: a storage that refuses, an engine that
            died.
        problem: For failed: what is wrong,
        remedy: and what to do.
    """

    kind: Kind
    shard: int
    done: int = 0
    total: int = 0
    computed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    requests_per_second: float = 0.0
    prompt_tokens_per_second: float = 0.0
    generated_tokens_per_second: float = 0.0
    seconds_left: float = 0.0
    running: int = 0
    waiting: int = 0
    batch_fill: float = 0.0
    kv_usage: float = 0.0
    preemptions: int = 0
    drafts: int = 0
    accepted: list[int] = []
    restarts: int = 0
    trouble: str = ""
    problem: str = ""
    remedy: str = ""

    def line(self) -> str:
        """The event as a line of JSON."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def parse(line: str) -> "Event | None":
        """The event that a line holds; None if it holds none."""
        try:
            return _decoder.decode(line)
        except msgspec.MsgspecError:
            return None


_decoder = msgspec.json.Decoder(Event)


def events_on_stdout() -> Callable[[Event], None]:
    """Keep standard output for events: whatever else writes to it is sent to standard error.

    Done on the level of file descriptors, since native code writes too.
    """
    sys.stdout.flush()
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(event: Event) -> None:
        channel.write(event.line() + "\n")
        channel.flush()

    return tell


class Throttle:
    """Lets something through at most every so many seconds.

    Args:
        seconds: The interval.
        growth: The interval is at least this share of all the time that has passed, so that what
            lasts for days is not told more than some hundreds of times.
    """

    def __init__(self, seconds: float, growth: float = 0.0) -> None:
        self._seconds = seconds
        self._growth = growth
        self._start = self._last = time.monotonic()

    def ready(self) -> bool:
        """Whether the interval is over; if so the next one starts."""
        now = time.monotonic()
        if now - self._last < max(self._seconds, self._growth * (now - self._start)):
            return False
        self._last = now
        return True
