"""The order of a prompt's columns: what it shares, what a better one would, and the advice."""

import polars as pl
import pytest

from acdc_dagster.prefix.examine import field_order as module
from acdc_dagster.prefix.examine.field_order import FieldOrder, field_order


def catalogue(rows: int = 100) -> pl.DataFrame:
    """A title of 10 bytes that tells rows apart at once, then a brand and its maker of 20 each."""
    return pl.DataFrame(
        {
            "title": [f"{chr(0x100 + at)}{'-' * 8}" for at in range(rows)],
            "brand": [f"{at % 4}{'b' * 19}" for at in range(rows)],
            "maker": [f"{at % 2}{'m' * 19}" for at in range(rows)],
        }
    )


def test_repeated_columns_belong_in_front() -> None:
    """The makers first, then the brands, each of which has one maker, then what is distinct."""
    found = field_order(catalogue())
    # The titles begin with the bytes C4 80 … C4 BF and C5 80 … C5 A3: all but two share the first,
    # and within each of the four brands too.
    given, best = 98, 98 * 20 + 96 * 20 + 4 * 23
    assert (found.given, found.best) == (("title", "brand", "maker"), ("maker", "brand", "title"))
    assert found.given_sharing == pytest.approx(given / 5_000)
    assert found.best_sharing == pytest.approx(best / 5_000)
    assert (found.bytes_saved, found.rows) == (best - given, 100)
    assert found.advice == (
        "Move maker, brand before title: sharing 0.02 -> 0.79 (column_order: [maker, brand] in "
        "defs.yaml does it); it changes the prompt, so compare answers first."
    )


def test_advice_moves_no_more_than_it_must() -> None:
    """A column that is in front already stays, and those behind keep their order."""
    frame = catalogue().select(
        "maker", "title", extra=pl.col("title") + "x", brand="brand", more="title"
    )
    found = field_order(frame)
    assert found.best == ("maker", "brand", "title", "extra", "more")
    assert found.advice.startswith("Move brand before title: ")


@pytest.mark.parametrize(
    ("columns", "sharing", "rows"),
    [
        ({}, 0, 0),
        ({"a": []}, 0, 0),
        ({"a": ["x"]}, 0, 1),
        ({"a": ["x", "x", "x"], "b": ["y", "y", "y"]}, 0, 1),  # computed once
        ({"a": ["ax", "ay", "b"]}, 1 / 5, 3),
        ({"a": ["p", "q", "r"], "b": ["s", "t", "u"]}, 0, 3),
        ({"a": ["same", "same"], "b": ["p", "q"]}, 4 / 10, 2),
        ({"a": [None, None, "x"], "b": ["p", "q", "r"]}, 0, 3),
        ({"a": [None, ""], "b": ["p", "p"]}, 0, 1),
        ({"a": [None, None], "b": [None, None]}, 0, 1),
        ({"a": [10, 10], "b": ["p", "q"]}, 4 / 6 - 2 / 6, 2),
    ],
)
def test_where_nothing_is_gained(
    columns: dict[str, list[object]], sharing: float, rows: int
) -> None:
    """Hardly any rows or columns, rows all equal or all distinct, nulls, and a good order."""
    frame = pl.DataFrame(columns, schema=None if columns.get("a") else dict.fromkeys(columns, str))
    found = field_order(frame)
    same = tuple(columns)
    assert found == FieldOrder(same, same, pytest.approx(sharing), pytest.approx(sharing), 0, rows)
    assert found.advice.startswith("Keep the order of the columns")


def test_the_text_around_the_columns_counts() -> None:
    """Lines above the first column are shared in any order; a label is, where its column is."""
    frame = pl.DataFrame({"id": ["1", "2", "3", "4"], "kind": ["k", "k", "l", "l"]})
    found = field_order(frame, ["Tag é.\nId: ", "\nKind: ", "!"])
    total = 4 * (8 + 4 + 1 + 7 + 1 + 1)
    assert found.given_sharing == pytest.approx(3 * (8 + 4) / total)
    assert found.best == ("kind", "id")
    assert found.best_sharing == pytest.approx((3 * (8 + 7) + 2 * (1 + 4)) / total)


def test_a_small_gain_is_not_worth_a_move() -> None:
    """A prompt is not to be changed for less than a hundredth of its bytes."""
    frame = pl.DataFrame({"text": [f"{at}" * 200 for at in range(8)], "kind": ["k"] * 8})
    assert field_order(frame).best == ("text", "kind")
    more = frame.with_columns(kind=pl.lit("k" * 9))
    assert field_order(more).best == ("kind", "text")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sample_keeps_what_small_groups_share(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows a customer: a tenth of the rows, taken singly, would hardly hold two of one."""
    monkeypatch.setattr(module, "_SEARCHED", 8_000)
    monkeypatch.setattr(module, "_MEASURED", 16_000)
    rows = 40_000
    at = pl.int_range(rows, eager=True)
    text = at.hash(1).cast(pl.String).str.zfill(20)
    profile = (at // 5).hash(2).cast(pl.String).str.zfill(20) + "-" * 80
    kind = (at % 2).cast(pl.String)  # of groups so large that rows are taken, not groups
    found = field_order(pl.DataFrame({"text": text, "profile": profile, "kind": kind}), seed=seed)
    assert found.best[0] in ("profile", "kind")
    assert found.best_sharing == pytest.approx(0.8 * 100 / 121, abs=0.05)
    assert found.rows == pytest.approx(16_000 / 3, rel=0.15)
    assert found.bytes_saved == pytest.approx(0.8 * 100 * rows, rel=0.1)


def test_a_sample_of_one_large_group_and_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value that holds half of the rows neither fills the sample nor is missing from it."""
    monkeypatch.setattr(module, "_SEARCHED", 4_000)
    monkeypatch.setattr(module, "_MEASURED", 4_000)
    at = pl.int_range(20_000, eager=True)
    customer = pl.select(pl.when(at % 2 == 0).then(-1).otherwise(at // 10)).to_series()
    frame = pl.DataFrame({"id": at.hash(1).cast(pl.String).str.zfill(20), "customer": customer})
    found = field_order(frame.with_columns(customer=pl.col("customer").cast(pl.String) + "-" * 80))
    assert found.rows == pytest.approx(2_000, rel=0.2)
    assert found.best == ("customer", "id")
    assert found.best_sharing == pytest.approx((0.5 + 0.5 * 0.8) * 84 / 104, abs=0.05)
