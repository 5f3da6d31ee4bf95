"""Frames on their way into a Delta table, made while others are written."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, Full, Queue
from threading import Event, Thread

import polars as pl
import pyarrow as pa

_WAIT = 0.1  # seconds between looks at whether the other side is still there
# Texts as polars holds them, so that the writer makes the only copy.
_AS_HELD = pl.CompatLevel.newest()


class FrameStream:
    """Frames as Arrow batches for Delta's writer, in bounded memory.

    The frames are made in a thread of their own: the writer asks for them from inside its runtime,
    where nothing that uses that runtime itself, such as reading another table, may run. What making
    them raises comes back from the writer as an error of its own, so the real one is kept and
    raised in its place.

    Args:
        frames: What to write; made one by one.
        keys: Columns that all rows get, with their values.
        target: Columns of the table.
    """

    def __init__(
        self, frames: Iterable[pl.DataFrame], keys: Mapping[str, str], target: pl.Schema
    ) -> None:
        self._frames = frames
        self._keys = [pl.lit(value).alias(key) for key, value in keys.items()]
        self._target = target
        self._schema = pl.DataFrame(schema=target).to_arrow(compat_level=_AS_HELD).schema
        self._queue: Queue[pa.Table | None] = Queue(maxsize=1)
        self._given_up = Event()
        self._raised: BaseException | None = None

    @contextmanager
    def reading(self) -> Generator[pa.RecordBatchReader]:
        """The rows with their keys, while the block lasts.

        Raises:
            Exception: What making the frames raised.
        """
        maker = Thread(target=self._make, name="frames", daemon=True)
        maker.start()
        try:
            yield pa.RecordBatchReader.from_batches(self._schema, self._batches())
        except Exception:
            if self._raised is not None:
                raise self._raised from None
            raise
        finally:
            self._given_up.set()
            maker.join()

    def _make(self) -> None:
        try:
            for frame in self._frames:
                rows = frame.with_columns(self._keys).select(self._target.names())
                # In one piece: the writer may take two pieces in either order.
                whole = rows.cast(self._target).rechunk()
                if not self._put(whole.to_arrow(compat_level=_AS_HELD).cast(self._schema)):
                    return
        except BaseException as error:
            self._raised = error
        self._put(None)

    def _put(self, rows: pa.Table | None) -> bool:
        """Hand on; False if nobody takes it any more."""
        while not self._given_up.is_set():
            try:
                self._queue.put(rows, timeout=_WAIT)
            except Full:
                continue
            return True
        return False

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                rows = self._queue.get(timeout=_WAIT)
            except Empty:
                continue
            if rows is None:
                break
            yield from rows.to_batches()
        if self._raised is not None:
            raise RuntimeError("the rows could not be made")
