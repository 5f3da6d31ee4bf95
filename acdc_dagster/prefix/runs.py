"""Runs: as many prompts as memory is given for, sorted; and their merge if there are several.

A job that fits into memory is one run and touches no disk. A larger one is spilled run by run, each
sorted and front-coded (of a prompt only the tokens beyond those it shares with the one before), and
merged range by range. Spill files have no name, so that nothing of them outlives the process.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from acdc_dagster.prefix.order import common_prefix, prefix_order, shared_with_previous
from acdc_dagster.prefix.segments import (
    Growing,
    IdOrder,
    Segments,
    equal_segments,
    shared_by_segments,
    written_out,
)
from acdc_dagster.prefix.sequences import Positions, Sequences, starts_of
from acdc_dagster.spool import temporary_files

HASH = 16
# Prompts and tokens in a frame that is handed on, at most; writers hold several frames.
_FRAME, _FRAME_TOKENS = 4096, 2**20
_BLOCK = 512  # prompts in a block of a spilled run

_SPILLED = pa.schema(
    [
        ("shared", pa.int32()),  # bytes of the key that are those of the row before it
        ("suffix", pa.binary()),  # the others
        ("hash", pa.binary(HASH)),
        ("sampling", pa.string()),
    ]
)


@dataclass(frozen=True)
class Sorted:
    """Some distinct prompts in prefix order.

    Attributes:
        tokens: Their ids.
        lcp: Tokens shared with the prompt before; of the first with the last of the frame before.
        hashes: Request hashes, 16 bytes each.
        sampling: JSON of what the engine needs beside the tokens.
        images: Lists of the SHA-256 of their images, in hexadecimal digits; None if none has any.
    """

    tokens: Sequences
    lcp: Positions
    hashes: NDArray[Any]
    sampling: list[str]
    images: pl.Series | None = None


class Run:
    """Collects prompts as sequences of segment numbers."""

    def __init__(self, order: IdOrder, segments: Segments) -> None:
        self._order = order
        self._segments = segments
        self._numbers = Growing(np.int32)
        self._widths = Growing(np.int64)
        self._hashes = Growing(np.dtype((np.void, HASH)))
        self._sampling = Growing(np.int32)

    def __len__(self) -> int:
        return len(self._widths)

    @property
    def bytes_held(self) -> int:
        """Memory for what was collected, and about what sorting it takes on top."""
        return 4 * self._segments.bytes_held + 12 * len(self._numbers) + 120 * len(self)

    def add(self, rows: Sequences, hashes: NDArray[Any], sampling: NDArray[np.int32]) -> None:
        """Collect prompts: their segment numbers, hashes and numbers of their sampling."""
        self._numbers.extend(rows.tokens)
        self._widths.extend(rows.lengths)
        self._hashes.extend(hashes)
        self._sampling.extend(sampling)

    def sorted(self, samplings: list[str]) -> Iterator[Sorted]:
        """Each distinct prompt once, in prefix order; equal prompts by hash."""
        rows = Sequences(self._numbers.values, starts_of(self._widths.values))
        hashes = self._hashes.values
        first = _first_of_each(hashes)
        rows, hashes, sampling = rows.take(first), hashes[first], self._sampling.values[first]
        order = prefix_order(_row_keys(rows, self._segments.ranks(), hashes))
        rows, hashes, sampling = rows.take(order), hashes[order], sampling[order]
        segments = self._segments.sequences()
        equal = equal_segments(rows)
        lcp = shared_by_segments(rows, segments, equal)
        lengths = starts_of(segments.lengths[rows.tokens])[rows.offsets]
        for start, stop in _frames(np.diff(lengths)):
            yield Sorted(
                written_out(rows, segments, equal, start, stop),
                lcp[start:stop],
                hashes[start:stop],
                [samplings[number] for number in sampling[start:stop].tolist()],
            )


def _frames(lengths: Positions) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are of the size of a frame; a longer prompt has a frame of its own."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        most = (int(ends[start - 1]) if start else 0) + _FRAME_TOKENS
        stop = int(np.searchsorted(ends, most, side="right"))
        stop = min(max(stop, start + 1), start + _FRAME)
        yield start, stop
        start = stop


def _first_of_each(hashes: NDArray[Any]) -> Positions:
    """Rows whose hash no earlier row has, in order."""
    halves = np.ascontiguousarray(hashes).view(np.uint64).reshape(-1, 2)
    frame = pl.DataFrame({"a": halves[:, 0], "b": halves[:, 1]}).with_row_index("at")
    first = frame.unique(["a", "b"], keep="first", maintain_order=True)["at"]
    return first.to_numpy().astype(np.int64)


def _row_keys(rows: Sequences, ranks: Positions, hashes: NDArray[Any]) -> Sequences:
    """Sequences that compare as the prompts do, then as their hashes.

    Ranks count from 1, so that a 0 after the last one puts a prompt before those that go on.
    """
    words = HASH // 4
    starts = starts_of(rows.lengths + 1 + words)
    keys = np.zeros(int(starts[-1]), dtype=np.uint32)
    shift = np.repeat(np.arange(len(rows), dtype=np.int64) * (1 + words), rows.lengths)
    keys[np.arange(len(rows.tokens)) + shift] = ranks[rows.tokens] + 1
    tails = (starts[1:, None] - words + np.arange(words)).ravel()
    keys[tails] = np.ascontiguousarray(hashes).view(">u4").astype(np.uint32)
    return Sequences(keys, starts)


class Spill:
    """One sorted run on disk."""

    def __init__(self, run: Iterator[Sorted], order: IdOrder) -> None:
        self.rows = 0
        self.bounds: list[tuple[bytes, bytes, int]] = []  # first key and hash of a block, its bytes
        with temporary_files():
            self._file: Any = TemporaryFile(prefix="acdc-sort-")  # noqa: SIM115 - lives as the run
            self._write(run, order)
            self._file.flush()
            self.bytes = self._file.tell()

    def _write(self, run: Iterator[Sorted], order: IdOrder) -> None:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        width = np.dtype(order.dtype).itemsize
        arrow: Any = pa  # its stubs leave much untyped
        with arrow.ipc.new_stream(self._file, _SPILLED, options=options) as writer:
            for frame in run:
                keys = _keys(frame.tokens, order)
                for start in range(0, len(keys), _BLOCK):
                    block = keys[start : start + _BLOCK]
                    shared = (frame.lcp[start : start + _BLOCK] * width).tolist()
                    shared[0] = 0  # a block can be read without the one before it
                    hashes = _as_list(frame.hashes[start : start + _BLOCK])
                    self.bounds.append((block[0], hashes[0], sum(map(len, block))))
                    suffixes = [key[at:] for key, at in zip(block, shared, strict=True)]
                    sampling = frame.sampling[start : start + _BLOCK]
                    columns = [
                        pa.array(shared, pa.int32()),
                        pa.array(suffixes, pa.binary()),
                        pa.array(hashes, pa.binary(HASH)),
                        pa.array(sampling, pa.string()),
                    ]
                    writer.write_batch(arrow.record_batch(columns, schema=_SPILLED))
                self.rows += len(keys)

    def blocks(self) -> "Iterator[_Rows]":
        """The run's rows again, block by block; the file is gone after the last."""
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            for batch in reader:
                keys: list[bytes] = []
                key = b""
                columns = batch.to_pydict()
                for shared, suffix in zip(columns["shared"], columns["suffix"], strict=True):
                    key = key[:shared] + suffix
                    keys.append(key)
                yield _Rows(keys, columns["hash"], columns["sampling"])
        self._file.close()


@dataclass
class _Rows:
    keys: list[bytes]
    hashes: list[bytes]
    sampling: list[str]

    def split(self, key: bytes, request_hash: bytes) -> "tuple[_Rows, _Rows]":
        """The rows before (key, hash), and the others."""
        at = bisect_left(
            range(len(self.keys)),
            (key, request_hash),
            key=lambda row: (self.keys[row], self.hashes[row]),
        )
        return self._slice(0, at), self._slice(at, len(self.keys))

    def _slice(self, start: int, stop: int) -> "_Rows":
        part = slice(start, stop)
        return _Rows(self.keys[part], self.hashes[part], self.sampling[part])


class _Cursor:
    """Reads a spilled run in ranges."""

    def __init__(self, spill: Spill) -> None:
        self._blocks = spill.blocks()
        self._rest = _Rows([], [], [])

    def before(self, bound: tuple[bytes, bytes] | None) -> list[_Rows]:
        """The rows up to a bound, or all that are left."""
        found: list[_Rows] = []
        rest: _Rows | None = self._rest
        while rest is not None:
            if bound is not None:
                below, above = rest.split(*bound)
                found.append(below)
                if above.keys:
                    self._rest = above
                    return found
            else:
                found.append(rest)
            rest = next(self._blocks, None)
        self._rest = _Rows([], [], [])
        return found


def merged(spills: list[Spill], order: IdOrder, range_bytes: int) -> Iterator[Sorted]:
    """The distinct prompts of all runs in prefix order.

    Args:
        spills: The runs.
        order: Order of the token ids.
        range_bytes: About so many bytes of keys are in memory at a time.
    """
    cursors = [_Cursor(spill) for spill in spills]
    last = np.empty(0, dtype=order.dtype)
    for bound in [*_bounds(spills, range_bytes), None]:
        rows = [rows for cursor in cursors for rows in cursor.before(bound)]
        frame = pl.DataFrame(
            {
                "key": pl.Series([key for some in rows for key in some.keys], dtype=pl.Binary),
                "hash": pl.Series([h for some in rows for h in some.hashes], dtype=pl.Binary),
                "sampling": pl.Series([s for some in rows for s in some.sampling], dtype=pl.String),
            }
        )
        del rows
        frame = frame.unique("hash", keep="any").sort("key", "hash")
        width = np.dtype(order.dtype).itemsize
        for start, stop in _frames(frame["key"].bin.size().to_numpy() // width):
            part = frame[start:stop]
            tokens = _tokens(part["key"], order)
            lcp = shared_with_previous(tokens)
            lcp[0] = common_prefix(last, tokens[0])
            last = tokens[len(tokens) - 1].copy()
            hashes = np.frombuffer(b"".join(part["hash"]), dtype=(np.void, HASH))
            yield Sorted(tokens, lcp, hashes, part["sampling"].to_list())


def _bounds(spills: list[Spill], range_bytes: int) -> list[tuple[bytes, bytes]]:
    """Where to cut the order into ranges of about equal size, seen from the runs' blocks."""
    blocks = sorted(bound for spill in spills for bound in spill.bounds)
    bounds: list[tuple[bytes, bytes]] = []
    held = 0
    for key, request_hash, size in blocks:
        if held >= range_bytes:
            bounds.append((key, request_hash))
            held = 0
        held += size
    return bounds


def _keys(tokens: Sequences, order: IdOrder) -> list[bytes]:
    """Bytes of each sequence that compare as the prompts do."""
    data = order.ranks(tokens.tokens).byteswap().tobytes()
    edges = (tokens.offsets * np.dtype(order.dtype).itemsize).tolist()
    return [data[edges[at] : edges[at + 1]] for at in range(len(tokens))]


def _tokens(keys: pl.Series, order: IdOrder) -> Sequences:
    width = np.dtype(order.dtype).itemsize
    ranks = np.frombuffer(b"".join(keys), dtype=order.dtype).byteswap()
    lengths = keys.bin.size().to_numpy().astype(np.int64) // width
    return Sequences(order.tokens(ranks), starts_of(lengths))


def _as_list(hashes: NDArray[Any]) -> list[bytes]:
    return [bytes(value) for value in hashes.tolist()]
