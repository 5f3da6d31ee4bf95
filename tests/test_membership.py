"""Which rows a partition has is tested with the table; here, what is said of rows left out."""

from datetime import UTC, datetime

import polars as pl
import pytest
from support import Declare
from support_table import by_day, contents, drain, open_source, over_table, store

from acdc_dagster.deployment import Deployment

STATIC = by_day("static", keys=["mon", "tue", "wed"])


@pytest.mark.parametrize("table", ["items", "items.parquet", "items.csv", "items.ndjson"])
def test_rows_without_a_partition_are_counted(
    deployment: Deployment, declare: Declare, table: str
) -> None:
    """They are in no partition's input, and each run says how many there are."""
    job = over_table(declare, table, **STATIC)
    days = ["mon", None, "tue", None]
    rows = pl.DataFrame({"id": list("abcd"), "title": "x", "day": days})
    store(deployment.root / table, rows)
    source = open_source(job, deployment, "mon")
    for _ in range(2):
        taken = drain(source)
        assert list(contents(taken)) == ["a"]
        (warning,) = taken.warnings
        assert warning.startswith(f"2 row(s) of {deployment.root / table} ")
        assert "'day'" in warning


@pytest.mark.parametrize("table", ["items", "items.parquet", "items.csv", "items.ndjson"])
def test_a_partition_without_rows_says_what_there_is(
    deployment: Deployment, declare: Declare, table: str
) -> None:
    """A text that is never a key is seen at once."""
    job = over_table(declare, table, **STATIC)
    rows = pl.DataFrame({"id": ["a", "b"], "title": "x", "day": ["Monday", "Tuesday"]})
    store(deployment.root / table, rows)
    taken = drain(open_source(job, deployment, "mon"))
    assert taken.input_rows == 0
    (warning,) = taken.warnings
    assert "'mon'" in warning
    assert "'Monday', 'Tuesday'" in warning


def test_the_keys_shown_are_of_the_cadence(deployment: Deployment, declare: Declare) -> None:
    """Of a column of moments, the keys are shown that its rows belong to."""
    day = [datetime(2024, 3, 5, 10, tzinfo=UTC)]
    store(deployment.root / "items", pl.DataFrame({"id": ["a"], "title": "x", "day": day}))
    job = over_table(declare, **by_day("daily", start="2024-03-01"))
    taken = drain(open_source(job, deployment, "2024-03-01"))
    assert len(taken.warnings) == 1
    assert "'2024-03-05'" in taken.warnings[0]


def test_no_rows_at_all_are_no_fault(deployment: Deployment, declare: Declare) -> None:
    """An empty table, and a partition with rows in a table without nulls, give no warning."""
    columns = {"id": pl.String, "title": pl.String, "day": pl.String}
    job = over_table(declare, **STATIC)
    store(deployment.root / "items", pl.DataFrame(schema=columns))
    assert drain(open_source(job, deployment, "mon")).warnings == []
    store(
        deployment.root / "items", pl.DataFrame([["a", "x", "mon"]], schema=columns, orient="row")
    )
    assert drain(open_source(job, deployment, "mon")).warnings == []
