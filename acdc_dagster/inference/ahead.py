"""Reading ahead of whoever uses what is read."""

from collections.abc import Generator, Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")
_WAIT = 0.1  # seconds between looks at whether anybody still reads


def read_ahead(items: Iterator[T], size: int) -> Generator[T]:
    """The same items, up to `size` of them made in a thread before they are asked for.

    Raises:
        Exception: What making an item raised, where that item would be.
    """
    made: Queue[tuple[T] | Exception | None] = Queue(size)
    left = Event()

    def put(item: tuple[T] | Exception | None) -> bool:
        while not left.is_set():
            try:
                made.put(item, timeout=_WAIT)
            except Full:
                continue
            return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put((item,)):
                    return
            put(None)
        except Exception as error:
            put(error)

    Thread(target=make, name="read-ahead", daemon=True).start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item[0]
    finally:
        left.set()
