"""What a worker tells whoever started it: one JSON object a line on its standard output.

Everything else, the engine's log included, goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

Kind = Literal["loading", "running", "progress", "finished", "failed"]


@dataclass(frozen=True)
class Event:
    """One line.

    Attributes:
        kind: loading (the engine starts), running (it is up), progress, finished or failed.
        done: Requests of the shard answered in this or an earlier run.
        total: Requests of the shard.
        computed: Requests answered in this run and committed or about to be.
        seconds: Since the engine was up.
        problem: For failed: what is wrong,
        remedy: and what to do.
    """

    kind: Kind
    shard: int
    done: int = 0
    total: int = 0
    computed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    problem: str = ""
    remedy: str = ""

    def line(self) -> str:
        """The event as a line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(line: str) -> "Event | None":
        """The event that a line holds; None if it holds none."""
        try:
            content: Any = json.loads(line)
            return Event(**cast("dict[str, Any]", content))
        except (ValueError, TypeError):
            return None


def events_on_stdout() -> Callable[[Event], None]:
    """Keep standard output for events: whatever else writes to it is sent to standard error.

    Done on the level of file descriptors, since engines write from native code and subprocesses.
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
