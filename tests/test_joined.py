"""Answers to the chunks of split rows: one output a row, and every input row counted once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import MODEL, Declare
from support_table import over_table, store

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.planning.stage import profile
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.prefix.tokens.cutter import TokenCutter
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.reconcile.stage import OutputStats, reconcile
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

LONG = " ".join(f"word{number}" for number in range(40))
ROWS = pl.DataFrame(
    {
        "id": ["b:1", "a", "a", "c", "c"],
        "text": [LONG, "short", "short", LONG + " x", LONG + " y"],
    }
)
DONE = {"finish_reason": "stop", "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 2}
REFUSED = {"finish_reason": None, "error_class": "permanent", "error_message": "no"}


@dataclass(frozen=True)
class Lineage:
    """A job whose rows are split, up to what the engine answers."""

    job: Job
    tables: Tables

    def answered(self, results: Mapping[str, Mapping[str, Any]]) -> OutputStats:
        """Stage 5, when each chunk's text is its id but for these results."""
        now = datetime.now(UTC)
        common = {"partition_key": "all", "attempt": 1, "started_at": now, "finished_at": now}
        asked = self.tables.read("request_map", "all").unique("request_hash", keep="first")
        rows: list[dict[str, Any]] = [
            {
                **common,
                "request_hash": request_hash,
                **(results.get(custom_id) or {**DONE, "text": custom_id}),
            }
            for custom_id, request_hash in asked.select("custom_id", "request_hash").iter_rows()
        ]
        self.tables.appender("inference", "shard").append(rows)
        return reconcile(self.job, self.tables, "all")

    def read(self, name: Any, *columns: str) -> list[tuple[Any, ...]]:
        """Columns of a table, by custom_id."""
        return self.tables.read(name, "all").sort("custom_id").select(columns).rows()


@pytest.fixture
def lineage(
    deployment: Deployment, declare: Declare, tables: Callable[[Job], Tables], model_path: Path
) -> Callable[..., Lineage]:
    """Stages 1 to 3, with so long a context: b:1 has three chunks, a has one, c is rejected."""

    def make(context_length: int | None = None) -> Lineage:
        store(deployment.root / "items.parquet", ROWS)
        split = {"column": "text", "tokens": 50}
        job = over_table(declare, "items.parquet", "{{ text }}", too_long={"split": split})
        model = deployment.model(MODEL)
        model = replace(model, context_length=context_length or model.context_length)
        cutter = TokenCutter(lambda: ModelTokenizer(model_path))
        take_in(job, deployment, tables(job), "all", cutter)
        sort_requests(model, tables(job), "all", block_size=32)
        profile(job, deployment, model, tables(job), "all")
        return Lineage(job, tables(job))

    return make


def test_one_output_a_row(lineage: Callable[..., Lineage]) -> None:
    """Answers in the order of the chunks, tokens summed; a row that stands twice counts twice."""
    made = lineage()
    stats = made.answered({})
    columns = ["custom_id", "status", "text", "completion_tokens", "input_rows", "finish_reason"]
    assert made.read("outputs", *columns) == [
        ("a", "ok", "a:0001", 2, 2, "stop"),
        ("b:1", "ok", "b:1:0001\n\nb:1:0002\n\nb:1:0003", 6, 1, "stop"),
    ]
    (of_the_run,) = set(made.read("outputs", "model", "prompt_version", "error_class"))
    assert of_the_run == (MODEL, made.job.prompt_version, None)
    assert made.read("outputs", "line", "prompt_tokens", "cached_tokens") == [
        (2, 10, 4),
        (1, 30, 12),
    ]
    assert made.read("dead_letter", "custom_id") == []
    assert (stats.outputs, stats.dead_letter) == (2, 0)
    ledger = stats.ledger
    assert (ledger.input_rows, ledger.outputs, ledger.rejected, ledger.dead_letter) == (5, 3, 2, 0)


def test_a_row_with_a_chunk_given_up_has_failed(lineage: Callable[..., Lineage]) -> None:
    """The other answers are there, the chunk is a dead letter, and the row counts in outputs."""
    made = lineage()
    stats = made.answered({"b:1:0001": REFUSED})
    assert made.read("outputs", "custom_id", "status", "error_class", "text", "input_rows") == [
        ("a", "ok", None, "a:0001", 2),
        ("b:1", "failed", "permanent", "b:1:0002\n\nb:1:0003", 1),
    ]
    assert made.read("dead_letter", "custom_id", "error_class", "message", "input_rows") == [
        ("b:1:0001", "permanent", "no", 0)
    ]
    assert stats.failures == {"permanent": 1}
    assert (stats.ledger.outputs, stats.ledger.dead_letter) == (3, 0)


def test_a_row_with_no_answer_is_dead_letters(lineage: Callable[..., Lineage]) -> None:
    """Its first chunk counts the row."""
    made = lineage()
    stats = made.answered({f"b:1:000{number}": REFUSED for number in (1, 2, 3)})
    assert made.read("outputs", "custom_id") == [("a",)]
    assert made.read("dead_letter", "custom_id", "input_rows") == [
        ("b:1:0001", 1),
        ("b:1:0002", 0),
        ("b:1:0003", 0),
    ]
    assert (stats.ledger.outputs, stats.ledger.dead_letter) == (2, 1)
    assert stats.ledger.balanced


def test_a_chunk_that_was_cut_at_max_tokens(lineage: Callable[..., Lineage]) -> None:
    """What it says is of use, and the row says that something is missing."""
    made = lineage()
    cut = {**DONE, "finish_reason": "length", "text": "so far"}
    stats = made.answered({"b:1:0002": cut, "b:1:0003": REFUSED})
    columns = ["custom_id", "status", "error_class", "finish_reason", "text"]
    assert made.read("outputs", *columns)[1] == (
        "b:1",
        "failed",
        "truncated",
        "length",
        "b:1:0001\n\nso far",
    )
    assert stats.failures == {"permanent": 1, "truncated": 1}


def test_chunks_that_only_sorting_could_reject(lineage: Callable[..., Lineage]) -> None:
    """The row has failed; it counts where its first chunk is."""
    made = lineage(context_length=75)
    rejected = made.read("rejected", "custom_id", "input_rows", "stage")
    assert ("b:1:0001", 1, "sorted_requests") in rejected
    assert ("b:1:0002", 0, "sorted_requests") in rejected
    stats = made.answered({})
    assert made.read("outputs", "custom_id", "status", "error_class", "text", "input_rows") == [
        ("a", "ok", None, "a:0001", 2),
        ("b:1", "failed", "rejected", "b:1:0003", 0),
    ]
    ledger = stats.ledger
    assert (ledger.input_rows, ledger.outputs, ledger.rejected, ledger.dead_letter) == (5, 2, 3, 0)
