"""The SHA-256 of a table's rows, some at a time, equal whenever the same rows are read.

Each column gives its values' bytes and, beside them, their lengths or which are null; the digest of
a chunk is that of its columns' digests. So it depends on the values and their order alone: not on
how the table's files are laid out, or on how many rows a scan gives at a time.
"""

import hashlib
from typing import Any, cast

import numpy as np
import polars as pl

from acdc_dagster.requests.source_chunks import SourceChunk
from acdc_dagster.requests.tables.slices import ROWS, Slice, rows_as_json

_NULL = 2**32 - 1  # no value is so long


class RowChunks:
    """Chunks of the rows of one pass over a partition, bad lines included.

    Args:
        source: The table's name.
        columns: The columns that are read.
        rows: Rows in a chunk.
    """

    def __init__(self, source: str, columns: list[str], rows: int = ROWS) -> None:
        self.chunks: list[SourceChunk] = []
        self._source = source
        self._columns = sorted(columns)
        self._most = rows
        self._first = 1
        self._begin()

    def _begin(self) -> None:
        self._values = {name: hashlib.sha256() for name in self._columns}
        self._lengths = {name: hashlib.sha256() for name in self._columns}
        self._bad = hashlib.sha256()
        self._rows = 0

    def add(self, part: Slice) -> None:
        """The next rows."""
        start = 0
        while start < part.height:
            end = min(start + self._most - self._rows, part.height)
            first, last = (int(part.places.search_sorted(place)) for place in (start, end))
            self._take(part.rows[first:last])
            for line in part.bad:
                if start <= line.number < end:
                    self._bad.update(line.original)
            self._rows += end - start
            start = end
            if self._rows == self._most:
                self._finish()

    def close(self) -> None:
        """There are no more rows."""
        if self._rows or not self.chunks:
            self._finish()

    def _take(self, rows: pl.DataFrame) -> None:
        for name in self._columns:
            lengths, values = _bytes_of(rows[name])
            self._lengths[name].update(lengths)
            self._values[name].update(values)

    def _finish(self) -> None:
        whole = hashlib.sha256()
        for name in self._columns:
            whole.update(self._lengths[name].digest())
            whole.update(self._values[name].digest())
        whole.update(self._bad.digest())
        columns = ", ".join(self._columns)
        digest = whole.hexdigest()
        self.chunks.append(
            SourceChunk(self._source, self._first, self._rows, None, None, digest, columns)
        )
        self._first += self._rows
        self._begin()


def _bytes_of(values: pl.Series) -> tuple[Any, Any]:
    """Lengths (a number for null), and the values end to end, as buffers."""
    if values.dtype.is_temporal() or values.dtype == pl.Boolean:
        values = values.to_physical().cast(pl.Int64)
    if isinstance(values.dtype, (pl.Int128, pl.UInt128)):  # numpy has no integers of that size
        values = values.cast(pl.String)
    if values.dtype.is_integer() or values.dtype.is_float():
        return values.is_null().to_numpy(), np.ascontiguousarray(values.fill_null(0).to_numpy())
    if values.dtype != pl.String:
        texts = [text.decode() for text in rows_as_json(values.to_frame("value"))]
        values = pl.Series(texts, dtype=pl.String)
    lengths = values.str.len_bytes().fill_null(_NULL).to_numpy()
    text = cast("Any", values.drop_nulls().rechunk().to_arrow())
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int64)[text.offset :][: len(text) + 1]
    data = text.buffers()[2]
    if data is None or len(text) == 0:
        return lengths, b""
    return lengths, memoryview(data)[int(offsets[0]) : int(offsets[-1])]
