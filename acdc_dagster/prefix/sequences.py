"""Many token sequences in two arrays: all tokens end to end, and where each sequence starts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

Tokens = NDArray[Any]
Positions = NDArray[np.int64]


def narrowest(ids: int) -> type[np.uint16] | type[np.uint32]:
    """The narrowest type for token ids below `ids`."""
    return np.uint16 if ids <= 2**16 else np.uint32


@dataclass(frozen=True)
class Sequences:
    """N token sequences of any lengths, 0 too.

    Attributes:
        tokens: All ids, uint16 or uint32.
        offsets: int64[N + 1]; sequence i is `tokens[offsets[i]:offsets[i + 1]]`.
    """

    tokens: Tokens
    offsets: Positions

    @staticmethod
    def of(sequences: Sequence[Iterable[int]], dtype: Any = np.uint32) -> "Sequences":
        """From sequences of ids."""
        arrays = [np.asarray(ids, dtype=dtype) for ids in sequences]
        tokens = np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)
        return Sequences(tokens, starts_of(np.array([len(ids) for ids in arrays], dtype=np.int64)))

    @staticmethod
    def concat(parts: Sequence["Sequences"], dtype: Any = np.uint32) -> "Sequences":
        """The sequences of all parts, in order."""
        if not parts:
            return Sequences.of([], dtype)
        tokens = np.concatenate([part.tokens for part in parts])
        return Sequences(tokens, starts_of(np.concatenate([part.lengths for part in parts])))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: int) -> Tokens:
        return self.tokens[self.offsets[at] : self.offsets[at + 1]]

    @property
    def lengths(self) -> Positions:
        """Tokens of each sequence, int64[N]."""
        return np.diff(self.offsets)

    def take(self, rows: Positions) -> "Sequences":
        """The sequences at `rows`, in that order."""
        lengths = self.lengths[rows]
        return Sequences(gathered(self.tokens, self.offsets[rows], lengths), starts_of(lengths))

    def joined(self, groups: Positions) -> "Sequences":
        """Neighbours made one: group i is the sequences `groups[i]` up to `groups[i + 1]`."""
        return Sequences(self.tokens, self.offsets[groups])

    def as_binary(self) -> pl.Series:
        """The ids of each sequence as bytes, of the array's own width, the lowest byte first."""
        data = np.ascontiguousarray(
            self.tokens.astype(self.tokens.dtype.newbyteorder("<"), copy=False)
        )
        offsets = pa.py_buffer((self.offsets * data.itemsize).data)
        buffers = [None, offsets, pa.py_buffer(data.data)]
        array: Any = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)
        return pl.Series(array, dtype=pl.Binary)


def token_list(token_ids: bytes, prompt_tokens: int) -> list[int]:
    """The ids that `sorted_requests` keeps as bytes."""
    width = len(token_ids) // prompt_tokens
    return np.frombuffer(token_ids, dtype=f"<u{width}").tolist()


def starts_of(lengths: Positions) -> Positions:
    """Where each of some neighbours of these lengths starts, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def gathered(values: NDArray[Any], starts: Positions, lengths: Positions) -> NDArray[Any]:
    """`values[starts[i] : starts[i] + lengths[i]]` for all i, end to end."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total > _COPY_RUNS * max(len(starts), 1):  # long runs: a copy each beats an index each
        found = np.empty(total, dtype=values.dtype)
        at = 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            found[at : at + length] = values[start : start + length]
            at += length
        return found
    index = np.arange(total, dtype=np.int64)
    index += np.repeat(starts - (ends - lengths), lengths)
    return values[index]


# Average run from which slices are copied one by one.
_COPY_RUNS = 48
