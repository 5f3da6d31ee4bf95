"""What moving repeated columns to the front of a prompt would gain in shared prefixes.

Rows share the beginnings of their prompts, so a column that repeats is worth most before one that
does not: "Optimizing LLM Queries in Relational Data Analytics Workloads" (arXiv 2403.05821). That
paper orders the columns of each row by itself; here all rows keep one order, that of the prompt.

Sharing is counted in bytes, so that no tokenizer is needed. A prefix cache reuses whole KV blocks,
so with short rows its hit rate stays below either sharing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from acdc_dagster.prefix.examine.field_search import highest_order
from acdc_dagster.prefix.examine.field_tree import Column, shared_in_order

# A move costs the user a comparison of answers, so a smaller gain in sharing is none,
WORTH = 0.01
_MOST = 0.9  # and the fewest columns are moved that bring so much of the gain.
_MEASURED = 5_000_000  # cells: rows times columns
_SEARCHED = 1_000_000
_WHOLE_GROUPS_TO = 100  # rows; larger groups keep enough rows in any sample


@dataclass(frozen=True)
class FieldOrder:
    """The order of a prompt's columns, as given and at best.

    Attributes:
        given: The columns as the prompt has them.
        best: The order to change to: it moves the fewest columns to the front that bring nine
            tenths of the highest gain in sharing; `given` if that gain is below `WORTH`.
        given_sharing: Share of the bytes of all distinct rows that repeat a prefix of another row,
        best_sharing: and in the best order; in [0, 1).
        bytes_saved: Bytes that the best order shares and the given one does not; of the whole
            table, also where a sample was measured.
        rows: Distinct rows that were measured.
    """

    given: tuple[str, ...]
    best: tuple[str, ...]
    given_sharing: float
    best_sharing: float
    bytes_saved: int
    rows: int

    @property
    def moved(self) -> tuple[str, ...]:
        """The columns to move, in their new order; none if the given order is best."""
        best, given = self._differing()
        fewest = (
            n
            for n in range(1, len(best))
            if best[n:] == tuple(c for c in given if c not in best[:n])
        )
        return best[: next(fewest, 0)]

    @property
    def advice(self) -> str:
        """What to do, in one sentence."""
        moved = self.moved
        if not moved:
            return "Keep the order of the columns: no other shares noticeably more."
        return (
            f"Move {', '.join(moved)} before {self._differing()[0][len(moved)]}: "
            f"sharing {self.given_sharing:.2f} -> {self.best_sharing:.2f} "
            f"(column_order: [{', '.join(moved)}] in defs.yaml does it); "
            "it changes the prompt, so compare answers first."
        )

    def _differing(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The best order and the given one, from the first column that differs."""
        pairs = enumerate(zip(self.best, self.given, strict=True))
        same = next((at for at, (best, given) in pairs if best != given), len(self.best))
        return self.best[same:], self.given[same:]


def field_order(
    frame: pl.DataFrame, literals: Sequence[str] | None = None, seed: int = 0
) -> FieldOrder:
    """Measure the order of the columns and search a better one.

    Rows that repeat another are left out: they are computed once in any order. The order is
    searched on a sample of the rows of about a million cells, and measured on all rows up to five
    million cells. A sample keeps small groups whole by the column that repeats most, so that
    sharing does not thin out with the rows.

    Args:
        frame: The columns that the prompt reads, in its order; what is not text is cast, and a
            null is the empty text.
        literals: The literal text before each column, and after the last: one more than columns.
            The text moves with the column that it stands before; the lines above that of the first
            column, and the text after the last, stay where they are. If None, there is none.
        seed: For the sample.

    Raises:
        polars.exceptions.PolarsError: A column cannot be cast to text: lists, bytes.
    """
    names = tuple(frame.columns)
    texts = literals or [""] * (len(names) + 1)
    line = texts[0].rfind("\n") + 1
    head, tail = len(texts[0][:line].encode()), len(texts[-1].encode())
    labels = [len(text.encode()) for text in (texts[0][line:], *texts[1:-1])]

    # Cast first: that 1 and "1" are the same text decides which rows are distinct.
    whole = frame.select(pl.all().cast(pl.String).fill_null("")).unique(maintain_order=True)
    rows = whole.height
    if rows < 2:
        return FieldOrder(names, names, 0.0, 0.0, 0, rows)
    sample, table = _samples(whole, (_SEARCHED, _MEASURED), seed)
    order = _worthwhile(sample, labels)

    def shared(order: Sequence[int]) -> int:
        columns = (Column.of(table[:, at], labels[at]) for at in order)
        return head * (table.height - 1) + shared_in_order(columns, table.height)

    values = sum(int(values.str.len_bytes().sum()) for values in table.iter_columns())
    total = values + table.height * (head + sum(labels) + tail)
    before = shared(range(len(names)))
    after = shared(order)
    if after - before < WORTH * total:
        order, after = list(range(len(names))), before
    return FieldOrder(
        given=names,
        best=tuple(names[at] for at in order),
        given_sharing=before / total,
        best_sharing=after / total,
        bytes_saved=round((after - before) * rows / table.height),
        rows=table.height,
    )


def _worthwhile(sample: pl.DataFrame, labels: Sequence[int]) -> list[int]:
    """Positions of the columns when as few as do for most of the gain are moved to the front."""
    given = range(sample.width)
    columns = [Column.of(sample[:, at], labels[at]) for at in given]

    def shared(order: Sequence[int]) -> int:
        return shared_in_order((columns[at] for at in order), sample.height)

    highest = highest_order(columns, sample.height)
    wanted = shared(given) + _MOST * (shared(highest) - shared(given))
    moves = (highest[:moved] + [at for at in given if at not in highest[:moved]] for moved in given)
    return next((order for order in moves if shared(order) >= wanted), highest)


def _samples(whole: pl.DataFrame, cells: Sequence[int], seed: int) -> list[pl.DataFrame]:
    """Samples of about so many cells each, whole groups of the most repeating column among them.

    A group is the rows of one value. Small groups are taken or left as a whole; of large ones, rows
    are taken, so that no single value fills the sample.
    """
    if whole.height * whole.width <= min(cells):
        return [whole for _ in cells]
    repeated: dict[str, int] = {}
    for name in whole.columns:
        groups = whole.group_by(value=name).len().filter(pl.col("len") <= _WHOLE_GROUPS_TO)
        bytes_ = groups["value"].str.len_bytes().cast(pl.Int64) * (groups["len"] - 1)
        repeated[name] = int(bytes_.sum())
    most = max(repeated, key=lambda name: repeated[name])
    small = pl.col(most).len().over(most) <= _WHOLE_GROUPS_TO
    row = pl.int_range(pl.len()).hash(seed)
    drawn = whole.select(drawn=pl.when(small).then(pl.col(most).hash(seed)).otherwise(row))["drawn"]
    return [
        whole.filter(drawn < n * 2**64 // (whole.height * whole.width))
        if n < whole.height * whole.width
        else whole
        for n in cells
    ]
