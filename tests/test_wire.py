"""What a worker and its engine tell one another through a pipe."""

import os
import threading

from acdc_dagster.inference.engines import wire
from acdc_dagster.inference.engines.protocol import EngineState, Request, unanswered
from acdc_dagster.inference.engines.wire import Add, Stepped


def test_messages_come_as_they_were_sent() -> None:
    """Whole, also where they are larger than the pipe; None after the last one."""
    sent = [
        Add([Request("a" * 32, b"\1\0" * 100_000, 100_000, "{}", 8, 3)]),
        Add([]),
    ]
    reader, writer = os.pipe()

    def send() -> None:
        for message in sent:
            wire.write(writer, message)
        os.close(writer)

    thread = threading.Thread(target=send)
    thread.start()
    assert [wire.read(reader, wire.to_engine) for _ in range(3)] == [*sent, None]
    thread.join()
    os.close(reader)


def test_a_message_that_breaks_off_is_the_end() -> None:
    """As when the writer is killed in the middle of it."""
    reader, writer = os.pipe()
    wire.write(writer, Stepped([unanswered("h", "transient", "late")], EngineState(), 0.5))
    whole = os.read(reader, 65_536)
    os.write(writer, whole + whole[:-1])
    os.close(writer)
    told = wire.read(reader, wire.from_engine)
    assert (told.answers[0].error_class, told.running_seconds) == ("transient", 0.5)
    assert wire.read(reader, wire.from_engine) is None
    os.close(reader)
