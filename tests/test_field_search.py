"""The search against every order there is."""

import random
from itertools import permutations

import polars as pl
import pytest

from acdc_dagster.prefix.examine import field_search
from acdc_dagster.prefix.examine.field_search import highest_order
from acdc_dagster.prefix.examine.field_tree import Column, shared_in_order


def random_table(seed: int, width: int) -> tuple[list[Column], int]:
    """Columns that repeat more or less, some a function of another, and the number of rows."""
    dice = random.Random(seed)
    keys = [[dice.randrange(dice.choice([1, 3, 10, 60])) for _ in range(60)] for _ in range(width)]
    for at in range(1, width):
        if dice.random() < 0.3:
            keys[at] = [key // 2 for key in keys[dice.randrange(at)]]
    lengths = [dice.choice([0, 1, 8, 40]) for _ in keys]
    frame = pl.DataFrame(
        {
            f"c{at}": [f"{key}".zfill(2) + "-" * length for key in column]
            for at, (column, length) in enumerate(zip(keys, lengths, strict=True))
        }
    ).unique(maintain_order=True)
    return [Column.of(values, dice.randrange(5)) for values in frame.iter_columns()], frame.height


@pytest.mark.parametrize("seed", range(20))
def test_no_order_shares_more(seed: int) -> None:
    """Up to five columns, every permutation is compared."""
    columns, rows = random_table(seed, width=1 + seed % 5)
    shared = {
        order: shared_in_order((columns[at] for at in order), rows)
        for order in permutations(range(len(columns)))
    }
    assert shared[tuple(highest_order(columns, rows))] == max(shared.values())


@pytest.mark.parametrize("effort", [0, 10**6], ids=["greedy", "greedy in the end"])
@pytest.mark.parametrize("width", [0, 1, 12, 30])
def test_any_number_of_columns_is_put_in_order(
    width: int, effort: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All columns are in the order, once each, also when the search gives up being exact."""
    monkeypatch.setattr(field_search, "_EFFORT", effort)
    columns, rows = random_table(0, width)
    assert sorted(highest_order(columns, rows)) == list(range(width))


def test_the_greedy_way_is_right_where_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A country, its cities and a text of each row come in that order without any search."""
    monkeypatch.setattr(field_search, "_EFFORT", 0)
    rows = [(f"text {at} " * 9, f"city {at % 20} ", f"country {at % 4} ") for at in range(200)]
    columns = [Column.of(pl.Series(values), 0) for values in zip(*rows, strict=True)]
    assert highest_order(columns, len(rows))[-1] == 0
