"""Why requests share less than they could: a piece that varies early, before what all have.

A timestamp, an id or a counter in the head of a prompt ends the shared prefix there, and what
follows is computed for every request although it is the same. At the end of the prompt the piece
would cost nothing. The search takes a sample of the requests and looks in each for tokens that
begin soon after the end of what it shares and stand there in other requests too, so its work does
not grow with the job.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.prefix.order import common_prefix, prefix_order, shared_with_previous
from acdc_dagster.prefix.sequences import Sequences, Tokens

Ints = NDArray[np.int64]

_SAMPLE = 2000  # requests looked at, at most
_TAIL = 8192  # tokens after the varying piece that are compared, at most
_SHOWN = 8  # tokens of an example on either side of the varying piece
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd: no power of it is 0 modulo 2^64


@dataclass(frozen=True)
class Diagnosis:
    """A varying piece that keeps requests from sharing what follows it.

    Attributes:
        position: Tokens before the first one that differs; where most is lost, if several do.
        affected: Share of requests that would share more, 0 to 1. At least that: others with the
            same text must be in the sample.
        tokens: Prompt tokens of the job that would be shared in addition if the piece stood at the
            end; an estimate from the sample.
        rows: Positions in prefix order of two requests as an example,
        example: and their token ids from a little before the difference to a little after the
            piece.
        beginning: Token ids of both, from the first to where `example` begins.
    """

    position: int
    affected: float
    tokens: int
    rows: tuple[int, int]
    example: tuple[list[int], list[int]]
    beginning: list[int]


@dataclass(frozen=True)
class _Requests:
    """The requests in prefix order."""

    tokens: Tokens
    offsets: Ints
    order: Ints

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, position: int) -> Tokens:
        at = int(self.order[position])
        return self.tokens[int(self.offsets[at]) : int(self.offsets[at + 1])]


@dataclass(frozen=True)
class _Cause:
    """Requests of the sample that agree up to `position`, differ, and agree again.

    Attributes:
        gain: Tokens that its requests would share in addition, for one request counted twice:
        once: tokens of these that are computed once however many requests share them.
        affected: Requests that gain.
    """

    position: int
    gain: int
    once: int
    affected: int
    rows: tuple[int, int]
    example: tuple[list[int], list[int]]


def diagnose(
    tokens: Tokens,
    offsets: Ints,
    order: Ints | None = None,
    *,
    max_gap: int = 64,
    min_common: int = 32,
    min_gain: float = 0.02,
    seed: int = 0,
) -> Diagnosis | None:
    """Look for a varying piece in the head of the requests; None if there is none worth moving.

    What a request shares with its neighbours in the order it has already, so a piece that varies
    little (the hour of a timestamp) counts only for what it still costs.

    Args:
        tokens: int32[T], the ids of all requests one after the other.
        offsets: int64[N + 1], request i is `tokens[offsets[i]:offsets[i + 1]]`.
        order: int64[N], the requests in prefix order; as they lie if None.
        max_gap: Longest varying piece, tokens.
        min_common: Shortest common part after it that counts, tokens.
        min_gain: Least share of the job's prompt tokens that moving the piece must save.
        seed: Of the sample.
    """
    rows = len(offsets) - 1
    requests = _Requests(tokens, offsets, np.arange(rows) if order is None else order)
    size = min(rows, _SAMPLE)
    sample = np.sort(np.random.default_rng(seed).choice(rows, size, replace=False))
    shared = np.array([_shared(requests, at) for at in sample.tolist()], dtype=np.int64)
    causes = list(_causes(requests, sample, shared, max_gap, min_common))
    scale = rows / max(size, 1)
    gain = sum(cause.gain * scale - cause.once for cause in causes)
    if not causes or gain < min_gain * int(offsets[-1] - offsets[0]):
        return None
    by_position: dict[int, int] = {}
    for cause in causes:
        by_position[cause.position] = by_position.get(cause.position, 0) + cause.gain
    position = max(by_position, key=lambda at: (by_position[at], -at))
    shown = max((c for c in causes if c.position == position), key=lambda cause: cause.gain)
    return Diagnosis(
        position=position,
        affected=sum(cause.affected for cause in causes) / size,
        tokens=round(gain),
        rows=shown.rows,
        example=shown.example,
        beginning=requests[shown.rows[0]][: max(position - _SHOWN, 0)].tolist(),
    )


def _shared(requests: _Requests, at: int) -> int:
    """Tokens that a request shares with any other one: one of its neighbours shares most."""
    neighbours = [other for other in (at - 1, at + 1) if 0 <= other < len(requests)]
    return max((common_prefix(requests[at], requests[other]) for other in neighbours), default=0)


def _causes(
    requests: _Requests, sample: Ints, shared: Ints, max_gap: int, min_common: int
) -> Iterator[_Cause]:
    """Groups of sampled requests with the same text after a piece that varies."""
    text, begins = _common_text(requests, sample, shared, max_gap, min_common)
    for some in np.unique(text[text > 0]):
        members = np.flatnonzero(text == some)
        group: list[int] = [int(members[0])]
        heads: list[int] = []
        for left, right in pairwise(members.tolist()):
            head = common_prefix(requests[int(sample[left])], requests[int(sample[right])])
            if max(int(begins[left]), int(begins[right])) - head > max_gap:
                # They differ long before, so the piece before the text is not what parts them.
                yield from _cause(requests, sample, shared, begins, group, heads)
                group, heads = [right], []
            else:
                group.append(right)
                heads.append(head)
        yield from _cause(requests, sample, shared, begins, group, heads)


def _common_text(
    requests: _Requests, sample: Ints, shared: Ints, max_gap: int, min_common: int
) -> tuple[Ints, Ints]:
    """For each sampled request, which text it has in common with others, and where it begins.

    Of the runs of `min_common` tokens that begin within `max_gap` tokens of the end of what is
    shared, the one that most sampled requests have, and the first of these. Text 0 means none.
    """
    width = max_gap + min_common
    window = np.zeros((len(sample), width), dtype=np.uint64)
    filled = np.zeros(len(sample), dtype=np.int64)
    for at, (row, start) in enumerate(zip(sample.tolist(), shared.tolist(), strict=True)):
        ids = requests[row][start : start + width]
        window[at, : len(ids)] = ids
        filled[at] = len(ids)
    runs = np.zeros((len(sample), max_gap + 1), dtype=np.uint64)
    for at in range(min_common):
        runs = runs * _HASH_BASE + window[:, at : at + max_gap + 1]
    whole = np.arange(max_gap + 1) + min_common <= filled[:, None]
    owner = np.nonzero(whole)[0]
    kinds, kind = np.unique(runs[whole], return_inverse=True)
    pairs = np.unique(kind * max(len(sample), 1) + owner)  # a run repeated in one request is one
    requests_with = np.bincount(pairs // max(len(sample), 1), minlength=len(kinds))
    known = np.zeros(whole.shape, dtype=np.int64)
    known[whole] = kind + 1
    popularity = np.append(0, requests_with)[known]
    best = popularity.argmax(axis=1)
    chosen = np.arange(len(sample)), best
    return np.where(popularity[chosen] > 1, known[chosen], 0), shared + best


def _cause(
    requests: _Requests,
    sample: Ints,
    shared: Ints,
    begins: Ints,
    group: list[int],
    heads: list[int],
) -> Iterator[_Cause]:
    """What it would bring these requests to share their text; nothing if it brings nothing.

    Args:
        group: Their places in the sample, in prefix order.
        heads: Tokens that each two in succession have in common.
    """
    if len(group) < 2:
        return
    position = min(heads)
    tails = Sequences.of(
        [requests[int(sample[at])][int(begins[at]) :][:_TAIL] for at in group], np.uint32
    )
    by_tail = prefix_order(tails)
    again = shared_with_previous(tails.take(by_tail))
    most = np.maximum(again, np.append(again[1:], 0))
    gains = position + most - shared[np.array(group)[by_tail]]
    gaining = gains > 0
    if not gaining.any():
        return
    at = heads.index(position)
    left, right = group[at], group[at + 1]
    yield _Cause(
        position=position,
        gain=int(gains[gaining].sum()),
        once=int((most - again)[gaining].sum()),
        affected=int(gaining.sum()),
        rows=(int(sample[left]), int(sample[right])),
        example=(
            _excerpt(requests, sample, begins, left, position),
            _excerpt(requests, sample, begins, right, position),
        ),
    )


def _excerpt(requests: _Requests, sample: Ints, begins: Ints, at: int, position: int) -> list[int]:
    shown = slice(max(position - _SHOWN, 0), int(begins[at]) + _SHOWN)
    return requests[int(sample[at])][shown].tolist()
