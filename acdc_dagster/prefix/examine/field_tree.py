"""What rows share when the columns of a table are written one after the other.

A row is a sequence of fields, each a label (literal text, the same in all rows) and a value, and
the rows make a prefix tree. How many bytes of one column are shared depends on which columns stand
before it, not on their order: the values that follow the same beginning make a tree of their own.
So what an order shares is a sum over its columns, each given the set of those before it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_BUFFER = 64 * 2**20  # bytes of values that are compared at a time


@dataclass(frozen=True)
class Column:
    """One column, its values numbered in byte order.

    Attributes:
        label: Bytes of literal text before the value.
        codes: The number of each row's value.
        lengths: Bytes of each distinct value.
    """

    label: int
    codes: Ints
    lengths: Ints
    _common: tuple[Ints, ...]  # [p][i]: bytes that values i - 1 to i - 1 + 2**p have in common

    @staticmethod
    def of(values: pl.Series, label: int) -> "Column":
        """The column of these texts (String, no nulls)."""
        table = values.alias("value").to_frame()
        distinct = table.unique().sort("value").with_row_index("code")
        codes = table.join(distinct, on="value", maintain_order="left")["code"]
        lengths = distinct["value"].str.len_bytes().to_numpy().astype(np.int64)
        levels: list[Ints] = [_common_with_previous(distinct["value"], lengths)]
        while 1 << len(levels) < len(lengths):
            half, span = levels[-1], 1 << (len(levels) - 1)
            least: Ints = np.minimum(half[:-span], half[span:])
            levels.append(least)
        return Column(label, codes.to_numpy().astype(np.int64), lengths, tuple(levels))

    @property
    def bytes(self) -> int:
        """Bytes of the column in all rows, labels included."""
        return int(self.lengths[self.codes].sum()) + self.label * len(self.codes)

    def common(self, left: Ints, right: Ints) -> Ints:
        """Leading bytes that the values `left` and `right` have in common; left < right throughout.

        In byte order that is the least that any two neighbours between them have in common: the
        minimum over a range, which two overlapping ranges of a power of two cover.
        """
        power = np.frexp(right - left)[1].astype(np.int64) - 1
        least = np.empty(len(left), dtype=np.int64)
        for one, level in enumerate(self._common):
            at = np.flatnonzero(power == one)
            least[at] = np.minimum(level[left[at] + 1], level[right[at] + 1 - (1 << one)])
        return least


@dataclass(frozen=True)
class Beginning:
    """The rows by what they have in common so far: those equal in all columns read are a group.

    Attributes:
        rows: Positions of the rows that are not alone in their group; the others share no more.
        groups: Group of each of those rows, from 0.
        count: Number of groups.
    """

    rows: Ints
    groups: Ints
    count: int

    @staticmethod
    def of(rows: int) -> "Beginning":
        """Before the first column: all rows are one group."""
        together = rows if rows > 1 else 0
        zeros = np.zeros(together, dtype=np.int64)
        return Beginning(np.arange(together, dtype=np.int64), zeros, min(together, 1))

    def shared(self, column: Column) -> tuple[int, bool]:
        """Bytes shared in the column if it is read next, and whether it parts a group."""
        codes, values = column.codes[self.rows], len(column.lengths)
        pairs = np.sort(self.groups * values + codes)
        first = np.ones(len(pairs), dtype=np.bool_)
        first[1:] = pairs[1:] != pairs[:-1]
        group, code = np.divmod(pairs[first], values)
        neighbours = np.flatnonzero(group[1:] == group[:-1])
        common = column.common(code[neighbours], code[neighbours + 1])
        labels = column.label * (len(codes) - self.count)
        whole = column.lengths[codes].sum() - column.lengths[code].sum()
        return labels + int(whole) + int(common.sum()), len(group) > self.count

    def then(self, column: Column) -> "Beginning":
        """The rows once the column is read."""
        pairs = self.groups * len(column.lengths) + column.codes[self.rows]
        _, group, size = np.unique(pairs, return_inverse=True, return_counts=True)
        together = size > 1
        left, number = together[group], np.cumsum(together) - 1
        return Beginning(self.rows[left], number[group[left]], int(together.sum()))


def shared_in_order(columns: Iterable[Column], rows: int) -> int:
    """Bytes that `rows` distinct rows share with each other if the columns are written in order.

    The columns are taken one by one, and no more of them once all rows are told apart.
    """
    beginning, shared, rest = Beginning.of(rows), 0, iter(columns)
    while len(beginning.rows):
        column = next(rest)
        shared += beginning.shared(column)[0]
        beginning = beginning.then(column)
    return shared


def _common_with_previous(values: pl.Series, lengths: Ints) -> Ints:
    """Leading bytes that each value has in common with the one before it; 0 for the first."""
    common = np.zeros(len(values), dtype=np.int64)
    step = max(1, _BUFFER * len(values) // max(1, int(lengths.sum())))
    for first in range(1, len(values), step):
        part = slice(first - 1, first + step)
        common[first : first + step] = _common_with_next(values[part], lengths[part])
    return common


def _common_with_next(values: pl.Series, lengths: Ints) -> Ints:
    """The same in one buffer, eight bytes at a time; what differs leaves the comparison."""
    text = values.str.join("").item().encode() + bytes(8)
    words = np.ndarray(len(text) - 7, dtype="<u8", buffer=text, strides=(1,))
    starts = np.cumsum(lengths) - lengths
    limit = np.minimum(lengths[:-1], lengths[1:])
    common = np.zeros(len(limit), dtype=np.int64)
    equal = np.flatnonzero(limit)
    while len(equal):
        at = common[equal]
        differs = words[starts[equal] + at] ^ words[starts[equal + 1] + at]
        lowest = (differs & (~differs + np.uint64(1))).astype(np.float64)  # the lowest bit set
        same = np.where(differs == 0, 8, (np.frexp(lowest)[1] - 1) // 8)
        common[equal] = np.minimum(at + same, limit[equal])
        equal = equal[(differs == 0) & (common[equal] < limit[equal])]
    return common
