"""Engines that come to harm on purpose, for the tests of the worker that outlives them."""

import os
import signal
import threading
import time
from pathlib import Path

from acdc_dagster.inference.engines.protocol import Answer, Request
from acdc_dagster.planning.plan import EngineSettings
from benchmarks.recorded import RecordedEngine

# Token ids that the prompt of a harmful request begins with.
KILLS, HANGS = 666, 667


class FragileEngine(RecordedEngine):
    """Dies or hangs, for good, in the first step that runs a harmful request."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._harm: dict[str, int] = {}

    def add(self, request: Request) -> None:
        """Take note of the harm."""
        super().add(request)
        first = int.from_bytes(request.token_ids[:2], "little")
        if first in (KILLS, HANGS):
            self._harm[request.request_hash] = first

    def step(self) -> list[Answer]:
        """Come to harm, or not."""
        answers = super().step()
        for sequence in self._running:
            harm = self._harm.get(sequence.request.request_hash)
            if harm == KILLS:
                os.kill(os.getpid(), signal.SIGKILL)
            if harm == HANGS:
                threading.Event().wait()
        return answers


class UnstartableEngine(RecordedEngine):
    """Dies while it starts, with last words."""

    def __init__(self, settings: EngineSettings) -> None:
        os.write(2, b"the card has fallen off the bus\n")
        os.abort()


class HangingStartEngine(RecordedEngine):
    """Never starts."""

    def __init__(self, settings: EngineSettings) -> None:
        threading.Event().wait()


class OnceStartedEngine(RecordedEngine):
    """Starts once, dies in its third step, and starts again only at the third try."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        log = Path(settings.extra["log"])
        with log.open("a") as file:
            file.write("start\n")
        self._starts = log.read_text().count("start")
        if self._starts in (2, 3):
            raise RuntimeError("the memory of the dead one is not free yet")
        self._steps = 0

    def step(self) -> list[Answer]:
        """Die in the third step of the first life."""
        self._steps += 1
        if self._starts == 1 and self._steps == 3:
            os.abort()
        return super().step()


class SlowEngine(RecordedEngine):
    """Takes a tenth of a second a step."""

    def step(self) -> list[Answer]:
        """Sleep, then step."""
        time.sleep(0.1)
        return super().step()
