"""The engine's process: `python -m acdc_dagster.inference.engines.host`, started by a worker.

Messages come on standard input and go out on standard output; everything else that writes to
standard output, native code included, is sent to standard error. An engine that dies here takes no
result with it: what it answered is with the worker.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from queue import SimpleQueue

from acdc_dagster.errors import AcdcError
from acdc_dagster.inference.engines import wire
from acdc_dagster.inference.engines.protocol import (
    Answer,
    Engine,
    Request,
    RequestRefused,
    unanswered,
)
from acdc_dagster.inference.engines.wire import Abort, Add, Broken, Ready, Start, Stepped, ToEngine
from acdc_dagster.planning.plan import EngineSettings

_TELL_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def main() -> None:
    """Start the engine that the first message names, and step it until standard input ends."""
    channel = os.dup(1)
    os.dup2(2, 1)
    _die_with_worker()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the worker asks before it kills
    for number in (signal.SIGTERM, signal.SIGINT):  # when to end is the worker's decision
        signal.signal(number, signal.SIG_IGN)
    start = wire.read(0, wire.to_engine)
    if not isinstance(start, Start):
        return
    try:
        engine = _engine(start.adapter)(EngineSettings.model_validate_json(start.settings))
    except AcdcError as error:
        wire.write(channel, Broken(error.problem, error.remedy))
        return
    wire.write(channel, Ready(engine.name, engine.device))
    inbox: SimpleQueue[ToEngine | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(inbox,), daemon=True).start()
    _serve(engine, inbox, channel)
    engine.close()


def _serve(engine: Engine, inbox: "SimpleQueue[ToEngine | None]", channel: int) -> None:
    answers: list[Answer] = []
    told, running_seconds = time.monotonic(), 0.0
    while True:
        for message in _arrived(inbox, wait=not engine.unfinished and not answers):
            if message is None:
                return
            if isinstance(message, Add):
                answers += _refused(engine, message.requests)
            elif isinstance(message, Abort):
                engine.abort(message.request_hashes)
        if engine.unfinished:
            began = time.monotonic()
            answers += engine.step()
            running_seconds += engine.state.running * (time.monotonic() - began)
        if answers or time.monotonic() - told >= _TELL_SECONDS:
            wire.write(channel, Stepped(answers, engine.state, running_seconds))
            answers, told = [], time.monotonic()


def _arrived(inbox: "SimpleQueue[ToEngine | None]", wait: bool) -> Iterator[ToEngine | None]:
    """The messages that are there; with `wait` at least one."""
    if wait:
        yield inbox.get()
    while not inbox.empty():  # nobody else takes from it
        yield inbox.get()


def _refused(engine: Engine, requests: list[Request]) -> Iterator[Answer]:
    """Give requests to the engine; those that it refuses have their answer at once."""
    for request in requests:
        try:
            engine.add(request)
        except RequestRefused as error:
            yield unanswered(request.request_hash, "permanent", str(error))


def _receive(inbox: "SimpleQueue[ToEngine | None]") -> None:
    while (message := wire.read(0, wire.to_engine)) is not None:
        inbox.put(message)
    inbox.put(None)


def _engine(adapter: str) -> Callable[[EngineSettings], Engine]:
    module, _, name = adapter.partition(":")
    return getattr(import_module(module), name)


def _die_with_worker() -> None:
    """Have the system kill this process when the worker dies, also in the middle of a step."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
