"""The order of columns in which rows share the most bytes."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from acdc_dagster.prefix.examine.field_tree import Beginning, Column

_CANDIDATES = 8  # columns tried next at each step; with more columns than that the best may escape
_EFFORT = 20_000_000  # rows read before the search settles for a good order
_EFFORT_A_STEP = 3_000  # what a step takes without any rows, in rows


def highest_order(columns: Sequence[Column], rows: int) -> list[int]:
    """Positions of the columns in the order that shares the most; of equal ones, any.

    Best-first search over sets of columns. A set is hoped to share what it does plus what each
    column left would share if it came next. No order exceeds that hope, since a column shares less
    the more the rows before it are told apart; so the first complete order to come up shares the
    most. A column that tells no rows apart any more (it is functionally dependent on those before
    it) loses most by waiting, and is taken at once. When the search grows long it goes on greedily.
    """
    found = count()  # breaks ties in the order of discovery
    start = _Step.settled((), 0, Beginning.of(rows), columns)
    frontier = [(-start.hope, next(found), start)]
    reached: dict[frozenset[int], int] = {}
    effort = 0
    while True:
        _, _, step = heapq.heappop(frontier)
        if not step.open:
            return list(step.taken)
        if effort > _EFFORT:
            frontier.clear()
            reached.clear()
        for at in step.candidates(columns):
            taken, shared = frozenset((*step.taken, at)), step.shared + step.open[at]
            if shared > reached.get(taken, -1):
                reached[taken] = shared
                beginning = step.beginning.then(columns[at])
                following = _Step.settled((*step.taken, at), shared, beginning, columns)
                effort += len(step.open) * (len(beginning.rows) + _EFFORT_A_STEP)
                heapq.heappush(frontier, (-following.hope, next(found), following))


@dataclass(frozen=True)
class _Step:
    """The first columns of an order.

    Attributes:
        taken: Positions of the columns, in order.
        shared: Bytes that the rows share in them.
        beginning: The rows, grouped by these columns.
        open: Bytes that each column that is not taken would share if it came next.
    """

    taken: tuple[int, ...]
    shared: int
    beginning: Beginning
    open: dict[int, int]

    @staticmethod
    def settled(
        taken: tuple[int, ...], shared: int, beginning: Beginning, columns: Sequence[Column]
    ) -> "_Step":
        """The step with every column taken that tells no rows apart."""
        open_: dict[int, int] = {}
        dependent: list[int] = []
        for at in range(len(columns)):
            if at not in taken:
                adds, parts = beginning.shared(columns[at])
                if parts:
                    open_[at] = adds
                else:
                    dependent.append(at)
                    shared += adds
        return _Step((*taken, *dependent), shared, beginning, open_)

    @property
    def hope(self) -> int:
        """The most that an order with this beginning can share."""
        return self.shared + sum(self.open.values())

    def candidates(self, columns: Sequence[Column]) -> list[int]:
        """The open columns to try next: those that would share the largest part of their bytes."""
        return sorted(
            self.open, key=lambda at: self.open[at] / max(1, columns[at].bytes), reverse=True
        )[:_CANDIDATES]
