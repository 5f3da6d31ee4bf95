"""Rows whose text is split: the requests of their chunks, and what the rows are still told as."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import Declare
from support_table import over_table, store

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, ModelError
from acdc_dagster.job import Job
from acdc_dagster.prefix.examine.check import check_source
from acdc_dagster.prefix.tokens.cutter import TokenCutter
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.prompts.bodies import prompt_of
from acdc_dagster.requests.prompts.chunks import as_one, by_chunk, with_chunk
from acdc_dagster.requests.stage import RawStats, take_in
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]
LONG = " ".join(f"word{number}" for number in range(40))  # 121 tokens
SPLIT = {"split": {"column": "text", "tokens": 50, "overlap": 10}}


@pytest.fixture
def take(
    deployment: Deployment, declare: Declare, tables: TablesOf, model_path: Path
) -> Callable[..., tuple[RawStats, pl.DataFrame, pl.DataFrame]]:
    """Stage 1 over rows: what it tells, `raw_requests` in order and `rejected`."""
    cutter = TokenCutter(lambda: ModelTokenizer(model_path))

    def run(
        rows: list[tuple[Any, Any]], prompt: str = "Sum up: {{ text }}", **job: Any
    ) -> tuple[RawStats, pl.DataFrame, pl.DataFrame]:
        given = pl.DataFrame(rows, schema=["id", "text"], orient="row")
        store(deployment.root / "items.parquet", given)
        over = over_table(declare, "items.parquet", prompt, too_long=SPLIT, **job)
        stats = take_in(over, deployment, tables(over), "all", cutter)
        raw = tables(over).read("raw_requests", "all").sort("line", "custom_id")
        return stats, raw, tables(over).read("rejected", "all").sort("line")

    return run


def contents(raw: pl.DataFrame) -> list[str]:
    return [json.loads(body)["messages"][0]["content"] for body in raw["body"]]


def test_each_chunk_is_a_request(take: Callable[..., Any]) -> None:
    """In order, with the row's id and the chunk's number; the first has the row's input_rows."""
    stats, raw, rejected = take([("a", LONG), ("b:0002", "short"), ("c", "")])
    ids = ["a:0001", "a:0002", "a:0003", "b:0002:0001", "c:0001"]
    assert raw["custom_id"].to_list() == ids
    assert raw["input_rows"].to_list() == [1, 0, 0, 1, 1]
    texts = [content.removeprefix("Sum up: ") for content in contents(raw)]
    assert texts[0].startswith("word0 word1 ")
    assert texts[2].endswith(" word39")
    assert {word for text in texts[:3] for word in text.split()} == set(LONG.split())
    assert texts[3] == "short"
    assert (stats.input_rows, stats.requests, stats.rejected) == (3, 5, 0)
    assert stats.warnings == ["1 row was split into 3 chunks in `text`."]
    assert rejected.is_empty()
    rows = with_chunk(raw).select("row_id", "chunk").rows()
    assert rows == [("a", 1), ("a", 2), ("a", 3), ("b:0002", 1), ("c", 1)]


def test_more_chunks_than_four_digits_number() -> None:
    """The number grows, and is still read as a number."""
    row = {
        "custom_id": "a",
        "body": as_one([f"body {at}" for at in range(12_345)]),
        "input_rows": 3,
    }
    chunks = by_chunk(pl.DataFrame([row]))
    assert chunks["custom_id"].gather([0, 9_998, 9_999, -1]).to_list() == [
        "a:0001",
        "a:9999",
        "a:10000",
        "a:12345",
    ]
    assert chunks["input_rows"].sum() == 3
    shuffled = with_chunk(chunks.sample(fraction=1, shuffle=True, seed=1)).sort("chunk")
    assert shuffled["body"].equals(chunks["body"])


def test_a_row_is_judged_as_a_whole(take: Callable[..., Any]) -> None:
    """Rows of one id are one only if all their chunks are alike; else none of them is asked."""
    twice, differs = LONG + " and so on", LONG + " and that was all"
    stats, raw, rejected = take([("a", LONG), ("a", LONG), ("b", twice), ("b", differs)])
    assert raw.select("custom_id", "input_rows").rows() == [
        ("a:0001", 2),
        ("a:0002", 0),
        ("a:0003", 0),
    ]
    assert rejected.select("custom_id", "code", "input_rows").rows() == [
        ("b", "duplicate_custom_id", 1),
        ("b", "duplicate_custom_id", 1),
    ]
    assert stats.input_rows == 4


def test_what_is_not_text_is_one_chunk(take: Callable[..., Any]) -> None:
    """A number is written as ever; a null is rejected, or takes its default."""
    _, raw, rejected = take([("a", None), ("b", LONG)])
    assert with_chunk(raw)["row_id"].unique().to_list() == ["b"]
    assert rejected["code"].to_list() == ["null_or_bad_field"]
    _, raw, _ = take([("a", None)], '{{ text | default("nothing") }}')
    assert contents(raw) == ["nothing"]
    _, raw, _ = take([("a", 17)])
    assert contents(raw) == ["Sum up: 17"]


def test_a_row_that_is_split_and_cut_counts_once(take: Callable[..., Any]) -> None:
    """Though each of its chunks has the text that was cut."""
    stats, raw, _ = take([("abc", LONG)], "{{ id | truncate_chars(2) }}: {{ text }}")
    assert raw.height == 3
    assert all(content.startswith("ab: ") for content in contents(raw))
    assert "1 row was cut to 2 characters in `id`." in stats.warnings


def test_made_ids_are_those_of_rows(take: Callable[..., Any]) -> None:
    """An id made of the row's content has the chunk's number behind it."""
    _, raw, _ = take([("x", LONG)], source={"make_ids": True})
    rows = with_chunk(raw)
    assert rows["chunk"].to_list() == [1, 2, 3]
    (row_id,) = rows["row_id"].unique()
    assert row_id.endswith("-1")


def test_a_column_that_the_prompt_does_not_read(declare: Declare) -> None:
    """All chunks would ask the same."""
    job = over_table(declare, prompt="{{ title }}", too_long=SPLIT)
    with pytest.raises(DeclarationError, match=r"too_long\.split\.column is 'text'") as caught:
        prompt_of(job)
    assert "title" in caught.value.remedy


def test_without_a_tokenizer_no_row_is_rejected_for_it(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """It is no fault of the rows."""
    store(deployment.root / "items", pl.DataFrame({"id": ["a"], "text": [LONG]}))
    job = over_table(declare, prompt="{{ text }}", too_long=SPLIT)
    with pytest.raises(ModelError, match="no tokenizer"):
        take_in(job, deployment, tables(job), "all")


def test_a_check_counts_the_chunks(
    deployment: Deployment, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`acdc check JOB` examines the requests that a run would have."""
    given = pl.DataFrame({"id": ["a", "b", "b"], "text": [LONG, "short", "short"]})
    store(deployment.root / "items.parquet", given)
    over_table(declare, "items.parquet", "{{ text }}", too_long=SPLIT)
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    report = check_source("items", None, None, None, kv_tokens=10_000)
    assert (report.rows, report.valid, report.duplicates) == (3, 5, 1)
    assert "1 row was split into 3 chunks in `text`." in report.warnings
