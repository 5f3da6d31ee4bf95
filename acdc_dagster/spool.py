"""Temporary files: what does not fit into memory, and frames that wait to be written.

The files have no names, so nothing of them outlives the process, however it ends.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile, gettempdir
from typing import Any

import polars as pl
import pyarrow as pa

from acdc_dagster.errors import AcdcError


class SpaceError(AcdcError):
    """A temporary file cannot be made or written."""


@contextmanager
def temporary_files() -> Generator[None]:
    """Explain what the file system raises while temporary files are used."""
    try:
        yield
    except OSError as error:
        raise SpaceError(
            f"Could not write temporary files: {error}",
            f"Make room in {gettempdir()}, or name another folder with TMPDIR; then run the "
            "partition again. No table was changed by it.",
        ) from error


class Spool:
    """Keeps frames of one schema until they are asked for, in a file that has no name.

    A table must not be read while another is written: the storage layer does both with the same
    few threads, and on a machine with one core the two would wait for each other. So what is made
    of one table waits here for the other.
    """

    def __init__(self) -> None:
        with temporary_files():
            self._file: Any = TemporaryFile(prefix="acdc-spool-")  # noqa: SIM115 - lives as this
        self._writer: Any = None

    def add(self, frame: pl.DataFrame) -> None:
        """Keep a frame.

        Raises:
            SpaceError: There is no room for it.
        """
        arrow: Any = pa
        rows: Any = frame.to_arrow()
        with temporary_files():
            if self._writer is None:
                options = arrow.ipc.IpcWriteOptions(compression="lz4")
                self._writer = arrow.ipc.new_stream(self._file, rows.schema, options=options)
            self._writer.write_table(rows)

    def frames(self) -> Iterator[pl.DataFrame]:
        """The frames again, in order; ends the spool's use.

        Raises:
            SpaceError: There is no room for the last of them; raised by the call itself.
        """
        if self._writer is None:
            return iter(())
        with temporary_files():
            self._writer.close()
            self._file.seek(0)
        return self._read()

    def _read(self) -> Iterator[pl.DataFrame]:
        arrow: Any = pa
        with arrow.ipc.open_stream(self._file) as batches:
            for batch in batches:
                yield pl.DataFrame(batch)
        self._file.close()
