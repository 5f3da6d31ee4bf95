"""Ids for rows without one: the same for the same content, however the table changes around it."""

import json
from hashlib import sha256
from typing import Any

import polars as pl
import pytest
from support import Declare
from support_table import contents, over_table, take

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError

PROMPT = '{{ title }} {{ n | default("?") }}'


def ids_of(
    deployment: Deployment,
    declare: Declare,
    rows: list[tuple[str | None, int | None]],
    table: str = "items.parquet",
    **columns: Any,
) -> list[str]:
    """The custom_ids of rows of title and n, in order."""
    job = over_table(declare, table, PROMPT, source={"make_ids": True})
    frame = pl.DataFrame(rows, schema={"title": pl.String, "n": pl.Int64}, orient="row")
    taken = take(job, frame.with_columns(**columns), deployment)
    return taken.requests["custom_id"].to_list()


def test_ids_stay_when_other_rows_come_and_go(deployment: Deployment, declare: Declare) -> None:
    """Neither order nor neighbours nor columns that the prompt does not read change an id."""
    a, b, c = ("Pan", 1), ("Pan", 2), ("Pot", None)
    first = ids_of(deployment, declare, [a, b, c])
    assert len(set(first)) == 3
    assert ids_of(deployment, declare, [c, ("new", 0), a, b]) == [
        first[2],
        ids_of(deployment, declare, [("new", 0)])[0],
        *first[:2],
    ]
    assert ids_of(deployment, declare, [b], more=pl.lit("x")) == [first[1]]
    assert ids_of(deployment, declare, [a, c], "items") == [first[0], first[2]]


def test_equal_rows_are_numbered(deployment: Deployment, declare: Declare) -> None:
    """Each has an id of its own, also across batches, and no row is taken for a repetition."""
    count = 20_000
    ids = ids_of(deployment, declare, [("Pan", 1), ("Pot", 1)] * count)
    pan, pot = (ids[place].removesuffix("-1") for place in (0, 1))
    assert ids[0::2] == [f"{pan}-{number}" for number in range(1, count + 1)]
    assert ids[1::2] == [f"{pot}-{number}" for number in range(1, count + 1)]


def test_the_id_of_a_row_is_known(deployment: Deployment, declare: Declare) -> None:
    """It is 32 digits of the SHA-256 of the row's JSON, so that no release changes it."""
    (given,) = ids_of(deployment, declare, [("Pän", None)])
    # printf '{"n":null,"title":"Pän"}' | sha256sum
    assert given == "bc9609269ffdf0628f8c16c9e36e7bbf-1"


def test_a_rejected_row_has_its_id(deployment: Deployment, declare: Declare) -> None:
    """It can be found again as an answered one can."""
    job = over_table(declare, "items.parquet", PROMPT, source={"make_ids": True})
    rows = pl.DataFrame({"title": ["Pan", None], "n": [1, 1]})
    taken = take(job, rows, deployment)
    assert list(contents(taken).values()) == ["Pan 1"]
    (rejection,) = taken.rejections
    assert rejection.code == "null_or_bad_field"
    assert str(rejection.custom_id).endswith("-1")


def test_values_of_any_type(deployment: Deployment, declare: Declare) -> None:
    """Nested and other values count by what they say."""
    job = over_table(declare, "items.parquet", "{{ title }}", source={"make_ids": True})
    rows = pl.DataFrame({"title": [{"a": [1.5]}, {"a": [2.5]}, {"a": [1.5]}]})
    ids = take(job, rows, deployment).requests["custom_id"].to_list()
    assert ids[2] == ids[0].replace("-1", "-2")
    assert ids[1] not in ids[0::2]


def test_a_prompt_without_columns_makes_no_ids(deployment: Deployment, declare: Declare) -> None:
    """There is nothing that tells its rows apart."""
    job = over_table(declare, "items.parquet", "Hello", source={"make_ids": True})
    with pytest.raises(SourceError, match="make_ids"):
        take(job, pl.DataFrame({"title": ["Pan"]}), deployment)


@pytest.mark.parametrize("nested", [False, True])
def test_numbers_that_json_does_not_know_are_told_apart(
    deployment: Deployment, declare: Declare, nested: bool
) -> None:
    """NaN, the infinities and null are four contents, in whatever order, and 1.5 is what it was."""
    job = over_table(declare, "items.parquet", '{{ v | default("?") }}', source={"make_ids": True})
    values = [float("nan"), float("inf"), float("-inf"), None, 1.5]

    def ids(values: list[float | None]) -> list[str]:
        cells = [{"a": [value]} for value in values] if nested else values
        rows = pl.DataFrame({"v": cells}, strict=False)
        return take(job, rows, deployment).requests["custom_id"].to_list()

    found = ids(values)
    assert len(set(found)) == 5
    assert all(id_.endswith("-1") for id_ in found)
    assert ids(values[::-1]) == found[::-1]
    if not nested:
        contents = ['{"v":"NaN"}', '{"v":"Infinity"}', '{"v":"-Infinity"}', '{"v":null}']
        digests = [sha256(c.encode()).hexdigest()[:32] for c in [*contents, '{"v":1.5}']]
        assert found == [f"{digest}-1" for digest in digests]


def test_a_rejected_row_keeps_numbers_that_json_does_not_know(
    deployment: Deployment, declare: Declare
) -> None:
    """Its `original` says which they were."""
    job = over_table(declare, "items.parquet", "{{ title }} {{ v }}")
    rows = {"id": ["a", "b"], "title": [None, "x"], "v": [float("-inf"), 1.0]}
    (rejection,) = take(job, pl.DataFrame(rows), deployment).rejections
    assert json.loads(rejection.original) == {"id": "a", "title": None, "v": "-Infinity"}
