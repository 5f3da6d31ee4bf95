"""What a worker and its engine's process tell one another, and how it is put on a pipe.

A frame is four bytes with its length, then a message as MessagePack. The two processes are of one
version of this package, so the messages are not versioned.
"""

import os
from typing import Any

import msgspec
from msgspec import Struct

from acdc_dagster.inference.engines.protocol import Answer, EngineState, Request


class Start(Struct, frozen=True, tag=True):
    """To the engine: the first message.

    Attributes:
        adapter: `module:class` of the engine.
        settings: JSON of `planning.plan.EngineSettings`.
    """

    adapter: str
    settings: str


class Add(Struct, frozen=True, tag=True):
    """To the engine: take these requests."""

    requests: list[Request]


class Abort(Struct, frozen=True, tag=True):
    """To the engine: forget these requests."""

    request_hashes: list[str]


class Ready(Struct, frozen=True, tag=True):
    """From the engine: it is up; see `protocol.Engine`."""

    name: str
    device: str


class Broken(Struct, frozen=True, tag=True):
    """From the engine: it does not start; a person has to do something."""

    problem: str
    remedy: str


class Stepped(Struct, frozen=True, tag=True):
    """From the engine: it has made steps. Sent with each answer, and every half second.

    Attributes:
        running_seconds: Seconds of each step times the requests in its batch, summed since the
            engine started.
    """

    answers: list[Answer]
    state: EngineState
    running_seconds: float


ToEngine = Start | Add | Abort
FromEngine = Ready | Broken | Stepped

_encoder = msgspec.msgpack.Encoder()
to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def write(pipe: int, message: ToEngine | FromEngine) -> None:
    """Put a message on a pipe.

    Raises:
        BrokenPipeError: Nobody reads from it any more.
    """
    content = _encoder.encode(message)
    frame = memoryview(len(content).to_bytes(4, "little") + content)
    while frame:
        frame = frame[os.write(pipe, frame) :]


def read(pipe: int, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    """The next message on a pipe; None at its end, or if the writer died within a message."""
    head = _exactly(pipe, 4)
    content = _exactly(pipe, int.from_bytes(head, "little")) if head else None
    return decoder.decode(content) if content else None


def _exactly(pipe: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(pipe, min(size - len(parts), 2**20))
        if not part:
            return None
        parts += part
    return bytes(parts)
