"""`column_order`: which lines of a prompt move, what it refuses, what a job does with it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Declare
from support_table import over_table, store

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.job import Job
from acdc_dagster.prefix.examine.check import check_source
from acdc_dagster.requests.prompts.prompt import Prompt
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]
PATH = Path("assets/job/prompt.md")
ROW = {"title": "T", "brand": "B", "text": "abcdefg", "self": "S", "tags": ["x", "y"]}


def content(template: str, *first: str) -> str:
    """The content of the last message for one row."""
    return Prompt.compile(template, PATH, None, first).messages(ROW)[-1]["content"]


@pytest.mark.parametrize(
    ("template", "first", "expected"),
    [
        ("Title: {{ title }}\nBrand: {{ brand }}", "brand", "Brand: B\nTitle: T"),
        ("Look.\n{{ title }}\n{{ brand }}\nAnswer.", "brand", "Look.\nB\nT\nAnswer."),
        ("{{ title }}\n{{ brand }}\n{{ text }}", "text brand", "abcdefg\nB\nT"),
        ("{{ title }}\n\nThe maker:\n{{ brand }}", "brand", "The maker:\nB\nT"),
        ("{{ title }}\n{{ text | truncate_chars(3) }}", "text", "abc\nT"),
        ("{{ title }} by {{ brand }}\n{{ text }}", "text", "abcdefg\nT by B"),
        ("{{ title }}\n{% for tag in tags %}{{ tag }} {% endfor %}\n", "tags", "x y \nT"),
        ("{{ title }}\n{{ self }}", "self", "S\nT"),
        ("{{ title }}\n{{ brand }}", "title", "T\nB"),
        ("{{ brand }}\n{{ title }}\n{{ brand }}", "brand", "B\nB\nT"),
    ],
)
def test_the_lines_of_its_columns_come_first(template: str, first: str, expected: str) -> None:
    """Lines are moved as they are, with those above them that read no column."""
    assert content(template, *first.split()) == expected


def test_only_messages_that_read_the_column_change() -> None:
    """Examples without columns stay."""
    text = "<!-- user -->\nTitle: A\nBrand: C\n<!-- user -->\n{{ title }}\n{{ brand }}"
    messages = Prompt.compile(text, PATH, None, ["brand"]).messages(ROW)
    assert [message["content"] for message in messages] == ["Title: A\nBrand: C", "B\nT"]


@pytest.mark.parametrize(
    ("template", "first", "why"),
    [
        ("{{ title }} by {{ brand }}\n{{ text }}", "brand", "one reads several columns, brand, ti"),
        ("{{ title }}\n{{ brand\n}}", "title", "goes over several lines"),
        ("{{ title }}\n{% if brand %}\n{{ brand }}\n{% endif %}", "brand", "over several lines"),
        ("{{ title }}\n{{- brand }}", "brand", "strips the line break"),
        ("{% set a = title %}\n{{ a }}\n{{ brand }}", "brand", "uses what another sets"),
        ("{{ title }}", "brnad", "does not read"),
    ],
)
def test_a_prompt_whose_lines_cannot_be_moved(template: str, first: str, why: str) -> None:
    """It is told before anything runs, with what to do."""
    with pytest.raises(DeclarationError) as told:
        content(template, first)
    assert why in told.value.problem
    assert str(PATH) in told.value.problem
    assert told.value.remedy


LINES = st.lists(
    st.sampled_from(["text", "", "{{ title }}", "B: {{ brand }}", "{{ text }}!", "{# a #}"]),
    min_size=1,
    max_size=8,
)


@given(lines=LINES, first=st.permutations(["title", "brand", "text"]))
def test_no_line_is_lost_or_made(lines: list[str], first: list[str]) -> None:
    """The message has the same lines in another order."""
    template = "start\n" + "\n".join(lines) + "\nend"
    read = Prompt.compile(template, PATH).columns
    order = [column for column in first if column in read]
    given_, moved = (content(template, *some).split("\n") for some in ((), order))
    assert Counter(given_) == Counter(moved)
    assert (moved[0], moved[-1]) == ("start", "end")
    places = [moved.index({"title": "T", "brand": "B: B", "text": "abcdefg!"}[c]) for c in order]
    assert places == sorted(places)


@pytest.fixture
def by_brand(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A table whose brand repeats and stands last in the prompt."""
    rows = pl.DataFrame(
        {
            "id": range(400),
            "title": [f"Thing number {n * 13}" for n in range(400)],
            "about": [f"Made by the people of works {n % 4}, since 1902. " * 4 for n in range(400)],
        }
    )
    store(deployment.root / "items", rows)
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    return deployment


def test_what_acdc_check_advises_is_what_the_job_then_does(
    by_brand: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """The advised line in the declaration brings the sharing that was promised."""
    prompt = "Title: {{ title }}\nAbout: {{ about }}\nAnswer in a word."
    job = over_table(declare, prompt=prompt)
    (advice,) = (text for text in _advice(job) if "column_order" in text)
    assert "column_order: [about] in defs.yaml" in advice

    moved = over_table(declare, prompt=prompt, column_order=["about"])
    assert moved.prompt_version != job.prompt_version
    assert not [text for text in _advice(moved) if "column_order" in text]
    into = tables(moved)
    take_in(moved, by_brand, into, "all")
    body = into.read("raw_requests", "all")["body"][0]
    assert '"content":"About: Made' in body
    assert "\\nTitle: Thing" in body


def _advice(job: Job) -> list[str]:
    return check_source(job.name, None, None, None, 65_536).advice


def test_only_a_table_has_columns(declare: Declare) -> None:
    """Request files carry their own prompts."""
    with pytest.raises(DeclarationError, match="column_order"):
        declare(
            "items",
            {"source": {"requests": "x.jsonl"}, "model": "m", "column_order": ["brand"]},
        )
