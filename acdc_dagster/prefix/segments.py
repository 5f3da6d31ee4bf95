"""Segments: token sequences cut before every special token, each distinct one kept once.

Prompts of one job are made of few segments again and again, so sorting, comparing and hashing
segments stands for sorting, comparing and hashing prompts. The cuts depend on the ids alone: a
prompt has the same segments however its text was cut for the tokenizer.
"""

import hashlib
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.prefix.order import common_prefixes, prefix_order
from acdc_dagster.prefix.sequences import Positions, Sequences, narrowest, starts_of

DIGEST = 32


class Growing:
    """A one-dimensional array that grows at its end without being copied each time."""

    def __init__(self, dtype: Any) -> None:
        self._room: NDArray[Any] = np.empty(1024, dtype=dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, values: NDArray[Any]) -> None:
        """Add values at the end."""
        end = self._size + len(values)
        if end > len(self._room):
            room = np.empty(max(end, 2 * len(self._room)), dtype=self._room.dtype)
            room[: self._size] = self.values
            self._room = room
        self._room[self._size : end] = values
        self._size = end

    @property
    def values(self) -> NDArray[Any]:
        """What is there; not to be kept while the array grows."""
        return self._room[: self._size]


class IdOrder:
    """An order of token ids in which special tokens come first.

    With it a segment that ends is before a segment that goes on, so that comparing prompts segment
    by segment is comparing them token by token.

    Args:
        ids: All ids are below this.
        special: The ids before which sequences are cut.
    """

    def __init__(self, ids: int, special: Collection[int]) -> None:
        self.dtype = narrowest(ids)
        if not special:
            self._rank = self._id = None
            return
        is_special = np.zeros(ids, dtype=bool)
        is_special[list(special)] = True
        self._id = np.concatenate([np.flatnonzero(is_special), np.flatnonzero(~is_special)])
        self._id = self._id.astype(self.dtype)
        self._rank = np.empty(ids, dtype=self.dtype)
        self._rank[self._id] = np.arange(ids, dtype=self.dtype)

    def ranks(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Places of token ids in the order."""
        return tokens if self._rank is None else self._rank[tokens]

    def tokens(self, ranks: NDArray[Any]) -> NDArray[Any]:
        """The ids at these places."""
        return ranks if self._id is None else self._id[ranks]


class Segments:
    """The distinct segments seen, numbered as they come.

    Args:
        order: Order of the token ids.
        ids: All ids are below this.
        special: The ids before which sequences are cut.
    """

    def __init__(self, order: IdOrder, ids: int, special: Collection[int]) -> None:
        self._order = order
        self._is_special = np.zeros(ids, dtype=bool)
        self._is_special[list(special)] = True
        self._numbers: dict[bytes, int] = {}
        self._tokens = Growing(order.dtype)
        self._lengths = Growing(np.int64)
        self._digests = Growing(np.dtype((np.void, DIGEST)))

    @property
    def lengths(self) -> Positions:
        """Tokens of each segment."""
        return self._lengths.values

    @property
    def digests(self) -> NDArray[Any]:
        """SHA-256 of each segment's ids."""
        return self._digests.values

    @property
    def bytes_held(self) -> int:
        """Memory for the tokens."""
        return len(self._tokens) * np.dtype(self._order.dtype).itemsize

    def sequences(self) -> Sequences:
        """All segments, by number."""
        return Sequences(self._tokens.values, starts_of(self.lengths))

    def add(self, pieces: Sequences) -> Sequences:
        """The segment numbers of each piece, as sequences of int64 numbers."""
        tokens = pieces.tokens
        begins = self._is_special[tokens]
        begins[pieces.offsets[:-1][pieces.lengths > 0]] = True
        starts = np.flatnonzero(begins)
        bounds = np.append(starts, len(tokens))
        wide = memoryview(tokens.astype("<u4").tobytes())
        numbers = np.empty(len(starts), dtype=np.int64)
        fresh: list[int] = []
        digests: list[bytes] = []
        edges = (bounds * 4).tolist()
        known = self._numbers
        for at in range(len(starts)):
            digest = hashlib.sha256(wide[edges[at] : edges[at + 1]]).digest()
            number = known.get(digest)
            if number is None:
                number = known[digest] = len(known)
                fresh.append(at)
                digests.append(digest)
            numbers[at] = number
        new = Sequences(tokens, bounds).take(np.array(fresh, dtype=np.int64))
        self._tokens.extend(new.tokens)
        self._lengths.extend(new.lengths)
        self._digests.extend(np.frombuffer(b"".join(digests), dtype=(np.void, DIGEST)))
        return Sequences(numbers, np.searchsorted(starts, pieces.offsets).astype(np.int64))

    def ranks(self) -> Positions:
        """The place of each segment among all of them."""
        sequences = self.sequences()
        order = prefix_order(Sequences(self._order.ranks(sequences.tokens), sequences.offsets))
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order), dtype=np.int64)
        return places


def equal_segments(rows: Sequences) -> Positions:
    """How many leading segments each prompt has in common with the one before it; 0 for the first.

    Args:
        rows: Prompts as sequences of segment numbers.
    """
    count = len(rows)
    equal = np.zeros(count, dtype=np.int64)
    if count > 1:
        equal[1:] = common_prefixes(rows, np.arange(count - 1), np.arange(1, count))
    return equal


def shared_by_segments(rows: Sequences, segments: Sequences, equal: Positions) -> Positions:
    """LCP array, in tokens, of neighbouring prompts.

    It is the lengths of the leading segments that are equal, plus what the first two that differ
    have in common.

    Args:
        rows: Prompts as sequences of segment numbers.
        segments: The segments' tokens.
        equal: See `equal_segments`.
    """
    starts = rows.offsets[:-1]
    totals = starts_of(segments.lengths[rows.tokens])
    lcp = totals[starts + equal] - totals[starts]
    goes_on = (equal[1:] < rows.lengths[1:]) & (equal[1:] < rows.lengths[:-1])
    differs = np.flatnonzero(goes_on) + 1
    at = equal[differs]
    one = rows.tokens[starts[differs - 1] + at].astype(np.int64)
    other = rows.tokens[starts[differs] + at].astype(np.int64)
    lcp[differs] += common_prefixes(segments, one, other)
    return lcp


def written_out(
    rows: Sequences, segments: Sequences, equal: Positions, start: int, stop: int
) -> Sequences:
    """The tokens of prompts `start` up to `stop`.

    What a prompt shares with the one before it is copied from there in one piece.

    Args:
        rows: Prompts as sequences of segment numbers.
        segments: The segments' tokens.
        equal: See `equal_segments`.
    """
    first, last = int(rows.offsets[start]), int(rows.offsets[stop])
    numbers = rows.tokens[first:last].astype(np.int64)
    lengths = segments.lengths[numbers]
    ends = starts_of(lengths)
    offsets = ends[rows.offsets[start : stop + 1] - first]
    known = equal[start:stop].copy()
    known[:1] = 0  # nothing is there to copy from
    fresh = rows.offsets[start:stop] - first + known
    tokens = np.empty(int(ends[-1]), dtype=segments.tokens.dtype)
    source = segments.tokens
    begins: list[int] = segments.offsets[numbers].tolist()
    sizes: list[int] = lengths.tolist()
    row_starts: list[int] = offsets.tolist()
    copied: list[int] = (ends[fresh] - offsets[:-1]).tolist()
    next_segments: list[int] = (rows.offsets[start + 1 : stop + 1] - first).tolist()
    before = 0
    for row, segment in enumerate(fresh.tolist()):
        at = row_starts[row]
        size = copied[row]
        tokens[at : at + size] = tokens[before : before + size]
        before, at = at, at + size
        for number in range(segment, next_segments[row]):
            begin, size = begins[number], sizes[number]
            tokens[at : at + size] = source[begin : begin + size]
            at += size
    return Sequences(tokens, offsets)
