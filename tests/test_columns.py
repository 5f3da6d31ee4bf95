"""A table's columns and what its prompts share: which order is better, which column spoils it."""

from collections.abc import Callable

import polars as pl
import pytest
from support import Declare
from support_table import open_source, over_table, store

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.lineage.metadata import column_metadata
from acdc_dagster.prefix.examine.check import check_source
from acdc_dagster.prefix.examine.columns import columns_of, order_of_columns
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.requests.prompts.prompt import Fields
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]
FIELDS = Fields(("stamp", "brand", "title"), (None, None, None), ("At ", "\nBy ", ": ", "\n"))
RULES = "Answer with one word and nothing else, in lower case, and say so if none fits. " * 3


@pytest.mark.parametrize(
    ("one", "other", "columns"),
    [
        ("Be short.\nAt 12:00\nBy A: x", "Be short.\nAt 12:01\nBy A: x", "stamp"),
        ("At 12:00\nBy A: x", "At 13:00\nBy A: x", "stamp"),
        ("At 12\nBy A: x", "At 1\nBy A: x", "stamp"),
        ("At 1\nBy A: x", "At 1\nBy B: x", "brand"),
        ("At 1\nBy A: x\nEnd", "At 2\nBy B: x\nEnd", "stamp brand"),
        ("At 1\nBy A: x\nEnd", "At 2\nBy B: y\nEnd", "stamp brand title"),
        ("At 1\nBy A: x", "At 1\nBy A: y", "title"),
        ("At 1\nBy A: x", "At 1\nBy A: xy", "title"),
        ("<1>At 1", "<2>At 1", ""),
        ("At 1\nBy A: x", "At 1\nBy A: x", "title"),
    ],
)
def test_the_columns_in_which_two_prompts_differ(one: str, other: str, columns: str) -> None:
    """From where they part to where they go on alike."""
    assert columns_of(FIELDS, one, other) == tuple(columns.split())


@pytest.fixture
def stamped(deployment: Deployment, declare: Declare) -> Job:
    """A job whose prompt has a time stamp before rules that all rows share."""
    hours = [f"2026-11-02 {n // 60:02}:{n % 60:02}:{n * 7 % 60:02}" for n in range(300)]
    rows = pl.DataFrame(
        {
            "id": range(300),
            "title": [f"Thing number {n * 13}" for n in range(300)],
            "stamp": hours,
            "shop": ["Harbour Street"] * 300,
        }
    )
    store(deployment.root / "items", rows)
    prompt = "Shop: {{ shop }}\nTime: {{ stamp }}\n" + RULES + "\nTitle: {{ title }}"
    return over_table(declare, prompt=prompt)


def test_the_check_names_the_column_that_spoils_sharing(
    deployment: Deployment, stamped: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told from the prompts' tokens, whose borders need not be those of the columns."""
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    report = check_source(stamped.name, None, None, None, 65_536)
    (advice,) = (text for text in report.advice if "go on alike" in text)
    assert "that piece (column 'stamp') would let them share" in advice


def test_a_prompt_that_is_not_simple_names_none(
    deployment: Deployment, stamped: Job, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a filter makes of a column cannot be told from the prompt."""
    assert stamped.prompt is not None
    over_table(declare, prompt=stamped.prompt.replace("stamp }}", "stamp | upper }}"))
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    report = check_source(stamped.name, None, None, None, 65_536)
    (advice,) = (text for text in report.advice if "go on alike" in text)
    assert "that piece would let them share" in advice


def test_the_order_of_the_columns_is_told_with_the_asset(
    deployment: Deployment, declare: Declare
) -> None:
    """The sharing as it is, what is possible, and the columns to move."""
    rows = pl.DataFrame(
        {
            "id": range(400),
            "title": [f"Thing {n}" for n in range(400)],
            "about": [f"{n % 4} " * 100 for n in range(400)],
        }
    )
    store(deployment.root / "items", rows)
    given = column_metadata(
        over_table(declare, prompt="{{ title }} {{ about }}"), deployment, "all"
    )
    assert given["columns_to_move_first"] == "about"
    assert given["column_sharing"] < 0.2 < 0.8 < given["column_sharing_possible"]
    best = column_metadata(over_table(declare, prompt="{{ about }} {{ title }}"), deployment, "all")
    assert best["columns_to_move_first"] == "none"
    assert best["column_sharing"] == best["column_sharing_possible"] > 0.8


def test_there_is_no_order_to_tell_of(deployment: Deployment, declare: Declare) -> None:
    """Of a prompt with a filter, a column of lists, and a source that is gone meanwhile."""
    rows = pl.DataFrame({"id": [1, 2], "title": ["a", "b"], "tags": [["x"], ["y"]]})
    store(deployment.root / "items", rows)
    for prompt in ("{{ title | upper }}", "{{ tags }}"):
        job = over_table(declare, prompt=prompt)
        assert order_of_columns(open_source(job, deployment), 100) is None
        assert column_metadata(job, deployment, "all") == {}
    job = over_table(declare)
    (deployment.root / "items").rename(deployment.root / "gone")
    assert column_metadata(job, deployment, "all") == {}


def test_preparation_tells_its_progress(
    deployment: Deployment, stamped: Job, tables: TablesOf
) -> None:
    """Each stage ends with all its rows told."""
    told: list[str] = []
    into = tables(stamped)
    take_in(stamped, deployment, into, "all", on_progress=told.append)
    assert told[-1] == "300 rows taken in"
    model = deployment.model(stamped.declared.model)
    sort_requests(model, into, "all", 16, on_progress=told.append)
    assert told[1:] == ["300 requests tokenised", "300 distinct requests sorted"]
