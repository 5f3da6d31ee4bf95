"""An engine as its worker sees it: a process that takes requests, answers, and may die or hang."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO, cast

from acdc_dagster.errors import BackendError
from acdc_dagster.inference.engines import wire
from acdc_dagster.inference.engines.protocol import Request
from acdc_dagster.inference.engines.wire import (
    Abort,
    Add,
    Broken,
    FromEngine,
    Ready,
    Start,
    Stepped,
    ToEngine,
)
from acdc_dagster.planning.plan import EngineSettings

VLLM = "acdc_dagster.inference.engines.vllm_engine:VllmEngine"
_TAIL_LINES = 25
_DUMP_SECONDS = 2.0  # for a hung process to write where it hangs
_CLOSE_SECONDS = 20.0
_MESSAGE_BYTES = 64 * 2**20  # of images, after which requests go into a message of their own
_LOOK_SECONDS = 0.2  # between looks at whether to stop


class Stopped(Exception):
    """The worker was told to stop; what was answered is committed."""


class EngineDied(Exception):
    """The engine's process is gone; what it had not answered has to be asked again.

    Attributes:
        reason: How it ended, in words.
        last_lines: Of its log, indented.
    """

    def __init__(self, reason: str, tail: list[str]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.last_lines = "\n".join(f"    {line}" for line in tail)


class EngineProcess:
    """One engine in a process group of its own, so that it and its children can be killed at once.

    Args:
        settings: What the engine starts with.
        adapter: `module:class` of an `Engine`.
        start_seconds: For it to be up.
        stall_seconds: Without a step, while it has requests; then it counts as hung.
        stop: Set from outside to end the start.

    Raises:
        BackendError: It says that it cannot start, and what to do.
        EngineDied: It died or hung while it started.
        Stopped: `stop` was set before it was up.
    """

    def __init__(
        self,
        settings: EngineSettings,
        adapter: str = VLLM,
        *,
        start_seconds: float,
        stall_seconds: float,
        stop: threading.Event,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "acdc_dagster.inference.engines.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._outbox: SimpleQueue[ToEngine | None] = SimpleQueue()
        self._inbox: SimpleQueue[FromEngine | None] = SimpleQueue()
        self._log = threading.Thread(target=self._forward_log, daemon=True)
        self._log.start()
        for loop in (self._send, self._receive):
            threading.Thread(target=loop, daemon=True).start()
        self._outbox.put(Start(adapter, settings.model_dump_json()))
        ready = self._first_message(start_seconds, stop)
        self.name, self.device = ready.name, ready.device
        self._heard = time.monotonic()

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    def add(self, requests: list[Request]) -> None:
        """Give it requests."""
        some: list[Request] = []
        size = 0
        for request in requests:
            some.append(request)
            size += sum(len(image.content) for image in request.images)
            if size > _MESSAGE_BYTES:
                self._outbox.put(Add(some))
                some, size = [], 0
        self._outbox.put(Add(some))

    def abort(self, request_hashes: list[str]) -> None:
        """Have it forget requests."""
        self._outbox.put(Abort(request_hashes))

    def receive(self, wait: float, *, busy: bool) -> Stepped | None:
        """What it tells next; None if it tells nothing within `wait` seconds.

        Args:
            wait: At most so long.
            busy: Whether it has requests; one without any has nothing to tell.

        Raises:
            EngineDied: It died, or it is busy and has made no step for `stall_seconds`.
        """
        try:
            message = self._inbox.get(timeout=wait)
        except Empty:
            if not busy:
                self._heard = time.monotonic()
            elif time.monotonic() - self._heard > self._stall_seconds:
                raise self._hung(f"made no step for {self._stall_seconds:.0f} s") from None
            return None
        if not isinstance(message, Stepped):
            raise self._dead("while it worked")
        self._heard = time.monotonic()
        return message

    def dismiss(self) -> None:
        """Have it end, without waiting for it."""
        self._outbox.put(None)

    def close(self) -> None:
        """End it, kindly first."""
        self.dismiss()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it and all that it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._outbox.put(None)
        self._log.join(1.0)

    def _first_message(self, seconds: float, stop: threading.Event) -> Ready:
        until = time.monotonic() + seconds
        while True:
            if stop.is_set():
                self.kill()
                raise Stopped
            try:
                first = self._inbox.get(timeout=_LOOK_SECONDS)
            except Empty:
                if time.monotonic() < until:
                    continue
                raise self._hung(f"did not start within {seconds:.0f} s") from None
            if isinstance(first, Broken):
                self.kill()
                raise BackendError(first.problem, first.remedy)
            if not isinstance(first, Ready):
                raise self._dead("while it started")
            return first

    def _dead(self, when: str) -> EngineDied:
        self.kill()
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return self._died(f"The engine {how} {when}.")

    def _hung(self, what: str) -> EngineDied:
        self._process.send_signal(signal.SIGUSR1)  # its stacks go to the log
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DUMP_SECONDS)
        self.kill()
        return self._died(f"The engine {what} and was killed; the log shows where it hung.")

    def _died(self, reason: str) -> EngineDied:
        return EngineDied(reason, [line.decode(errors="replace").rstrip() for line in self._tail])

    def _send(self) -> None:
        with cast("IO[bytes]", self._process.stdin) as pipe, suppress(OSError):
            while (message := self._outbox.get()) is not None:
                wire.write(pipe.fileno(), message)

    def _receive(self) -> None:
        with cast("IO[bytes]", self._process.stdout) as pipe:
            while (message := wire.read(pipe.fileno(), wire.from_engine)) is not None:
                self._inbox.put(message)
        self._inbox.put(None)

    def _forward_log(self) -> None:
        with cast("IO[bytes]", self._process.stderr) as pipe:
            for line in pipe:
                self._tail.append(line)
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
