"""The SHA-256 of a source, chunk by chunk: what a partition was made from, and what changed since.

A chunk of a file ends with the line with which it has 8 MiB unpacked, so the same bytes give the
same chunks however they are packed and whenever they are read.
"""

import hashlib
from typing import NamedTuple

import polars as pl

from acdc_dagster.schemas import row_schema

CHUNK_BYTES = 8 * 2**20
_COLUMNS = row_schema("source_chunks")
# Files that a warning names.
_SHOWN = 3


class SourceChunk(NamedTuple):
    """One row of `source_chunks`, in the order of its columns.

    A source without rows has one chunk of none, so that it is told from one that was not there.

    Attributes:
        first_line: From 1: line of the file, row of the table.
        rows: Lines of the file, blank ones too, or rows of the table.
        byte_offset: Where it begins in the unpacked file; None if that cannot be told.
        bytes: Its length there.
        columns: The columns of a table that are in it; None for a file.
    """

    source: str
    first_line: int
    rows: int
    byte_offset: int | None
    bytes: int | None
    sha256: str
    columns: str | None

    @property
    def lines(self) -> str:
        """Its range of lines."""
        return f"{self.first_line}-{self.first_line + self.rows - 1}"


class LineChunks:
    """Chunks of a file that comes line by line, each line ended by one byte, whatever it was.

    Args:
        source: The file's name.
        size: Bytes with which a chunk ends.
    """

    def __init__(self, source: str, size: int = CHUNK_BYTES) -> None:
        self._source = source
        self._size = size
        self._first = 1
        self._begin()

    def _begin(self) -> None:
        self._hash = hashlib.sha256()
        self._rows = self._bytes = 0

    def add(self, lines: list[bytes]) -> list[SourceChunk]:
        """Take the next lines, without their ends; gives the chunks that they complete."""
        done: list[SourceChunk] = []
        for line in lines:
            self._hash.update(line)
            self._hash.update(b"\n")
            self._rows += 1
            self._bytes += len(line) + 1
            if self._bytes >= self._size:
                done += self.rest()
        return done

    def rest(self) -> list[SourceChunk]:
        """The chunk of the lines that are left; a file without any has an empty one."""
        if self._rows == 0 and self._first > 1:
            return []
        chunk = SourceChunk(
            self._source, self._first, self._rows, None, None, self._hash.hexdigest(), None
        )
        self._first += self._rows
        self._begin()
        return [chunk]


def chunk_rows(chunks: list[SourceChunk]) -> pl.DataFrame:
    """The rows for `source_chunks`."""
    return pl.DataFrame(chunks, schema=_COLUMNS, orient="row")


def changes(before: pl.DataFrame, now: list[SourceChunk]) -> list[str]:
    """What is to be said of files that are not those which a partition was last made from.

    Args:
        before: Rows of `source_chunks`; nothing is said if there are none.
        now: The chunks of the source as it is.
    """
    if before.is_empty():
        return []
    then = _by_source(
        [
            SourceChunk(*row)
            for row in before.select(_COLUMNS.names()).sort("first_line").iter_rows()
        ]
    )
    there = _by_source(now)
    told = [
        *(_change(then[source], there[source]) for source in there if source in then),
        *(f"{source} is new since this partition was last made." for source in there.keys() - then),
        *(
            f"{source} was there when this partition was last made, and is gone."
            for source in then.keys() - there
        ),
    ]
    found = sorted(change for change in told if change is not None)
    more = len(found) - _SHOWN
    return found if more <= 0 else [*found[:_SHOWN], f"{more} more files of the source changed."]


def _by_source(chunks: list[SourceChunk]) -> dict[str, list[SourceChunk]]:
    found: dict[str, list[SourceChunk]] = {}
    for chunk in chunks:
        found.setdefault(chunk.source, []).append(chunk)
    return found


def _change(before: list[SourceChunk], now: list[SourceChunk]) -> str | None:
    """How one file changed; None if it did not, or the prompt reads other columns of the table."""
    if before[0].columns != now[0].columns:
        return None
    known = {(chunk.first_line, chunk.sha256) for chunk in before}
    changed = [chunk for chunk in now if (chunk.first_line, chunk.sha256) not in known]
    source = now[0].source
    if changed:
        return (
            f"{source} changed since this partition was last made, first in the lines "
            f"{changed[0].lines}: {len(changed)} of its {len(now)} chunks differ."
        )
    if len(before) > len(now):
        return (
            f"{source} changed since this partition was last made: it ends with line "
            f"{now[-1].first_line + now[-1].rows - 1}, and had lines "
            f"{before[len(now)].first_line}-{before[-1].first_line + before[-1].rows - 1} too."
        )
    return None
