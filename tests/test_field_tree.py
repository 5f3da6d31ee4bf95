"""What rows share, against the prefix tree itself, built node by node."""

import random
from collections.abc import Iterator
from itertools import permutations

import polars as pl
import pytest

from acdc_dagster.prefix.examine import field_tree
from acdc_dagster.prefix.examine.field_tree import Column, shared_in_order

SEEDS = range(12)


def random_rows(seed: int) -> pl.DataFrame:
    """Distinct rows of up to four columns, with empty, long, nested and non-ASCII values."""
    dice = random.Random(seed)
    words = ["", "a", "ab", "alpine", "alpha", "é", "è", "ab" * 20, "ab" * 19 + "x", "\0"]
    width = dice.randint(1, 4)
    pools = [dice.sample(words, dice.randint(1, len(words))) for _ in range(width)]
    rows = [[dice.choice(pool) for pool in pools] for _ in range(dice.randint(1, 40))]
    names = [f"c{at}" for at in range(width)]
    return pl.DataFrame(rows, names, orient="row").unique(maintain_order=True)


def shared_in_tree(frame: pl.DataFrame, labels: list[bytes]) -> int:
    """All bytes minus the distinct nodes of the tree; a value ends in a node that has no bytes."""
    nodes: set[tuple[int | str, ...]] = set()
    total = 0
    for row in frame.iter_rows():
        path: list[int | str] = []
        for label, value in zip(labels, row, strict=True):
            written = [*label, *value.encode()]
            path += [*written, "end"]
            total += len(written)
        nodes |= {tuple(path[:depth]) for depth in range(1, len(path) + 1)}
    return total - sum(1 for path in nodes if path[-1] != "end")


@pytest.mark.parametrize("buffer", [1, 50, 2**26])
@pytest.mark.parametrize("seed", SEEDS)
def test_shared_bytes_are_those_of_the_tree(
    seed: int, buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every order of the columns, with labels, and however few values are compared at a time."""
    monkeypatch.setattr(field_tree, "_BUFFER", buffer)
    frame = random_rows(seed)
    labels = dict(zip(frame.columns, [b"", b"Brand: ", b"\n", b"x"], strict=False))
    columns = {name: Column.of(frame[name], len(labels[name])) for name in frame.columns}
    for order in permutations(frame.columns):
        found = shared_in_order((columns[name] for name in order), frame.height)
        assert found == shared_in_tree(frame.select(order), [labels[name] for name in order])


def test_columns_after_all_rows_are_told_apart_are_not_read() -> None:
    """A large table is measured without numbering the texts that can share nothing."""
    distinct = Column.of(pl.Series(["ab", "ac", "b"]), 3)

    def columns() -> Iterator[Column]:
        yield distinct
        pytest.fail("a second column was asked for")

    assert shared_in_order(columns(), 3) == 2 * 3 + 1


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        ("abc" * 1_000, "abc" * 1_000 + "d", 3_000),
        ("abc" * 1_000 + "c", "abc" * 1_000 + "d", 3_000),
        ("12345678", "123456789", 8),
        ("1234567x", "12345678", 7),
        ("é", "è", 1),  # UTF-8: C3 A9 and C3 A8
        ("", "a", 0),
    ],
)
def test_common_bytes_of_two_values(left: str, right: str, common: int) -> None:
    """Bytes are counted, in whole words of the comparison and beyond."""
    column = Column.of(pl.Series(sorted([left, right])), 0)
    assert shared_in_order([column], 2) == common
