"""One row per custom_id: its columns, where its values come from, and which attempt counts."""

from typing import Any

import polars as pl
import pytest
from support import Declare
from support_outputs import LATE, LENGTH, PARTITION, REFUSED, STOP, Lineage, lineage

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import IncompleteError
from acdc_dagster.lineage.metadata import table_metadata
from acdc_dagster.reconcile.ledger import ledger
from acdc_dagster.requests.stage import take_in

ROWS = [{"id": one} for one in "abc"]
NUMBER = {"type": "object", "properties": {"x": {"type": "integer", "description": "The count."}}}


@pytest.fixture
def made(deployment: Deployment, declare: Declare) -> Lineage:
    """A job over three rows with free text for answers."""
    found = lineage(deployment, declare, ROWS)
    found.prepare()
    return found


def test_what_the_engine_told_stands_beside_the_answer(made: Lineage) -> None:
    """Reasoning, further choices, log probabilities and vectors have columns of their own."""
    rich: dict[str, Any] = {
        **STOP,
        "text": "3",
        "reasoning": "one, two, three",
        "reasoning_tokens": 5,
        "choices": '[{"text": "4"}]',
        "logprobs": "{}",
        "embedding": [0.5, 1.0],
    }
    made.results({"a": rich, "b": {**STOP, "text": "1"}, "c": {**STOP, "text": "2"}})
    made.reconcile()
    columns = ("reasoning", "reasoning_tokens", "choices", "logprobs", "embedding")
    told = made.outputs("text", *columns)
    assert told["a"] == ("3", "one, two, three", 5, '[{"text": "4"}]', "{}", [0.5, 1.0])
    assert told["b"] == ("1", None, None, None, None, None)


def test_columns_are_the_same_whatever_comes(made: Lineage) -> None:
    """Names and types do not change between answers only, and failures only."""
    made.results({one: {**STOP, "text": one} for one in "abc"})
    made.reconcile()
    before = made.tables.read("outputs").schema
    made.results(dict.fromkeys("abc", REFUSED), minute=1, attempt=2)
    made.tables.replace("outputs", PARTITION, made.tables.read("outputs").clear())
    made.reconcile()
    assert made.tables.read("outputs").schema == before


def test_the_answer_that_ended_counts(made: Lineage) -> None:
    """Of several attempts: a whole answer before a cut one, that before none, then the newest."""
    made.results({"a": {**LENGTH, "text": "3 and"}, "b": REFUSED, "c": {**STOP, "text": "old"}})
    made.results({"a": LATE, "b": LATE, "c": {**STOP, "text": "new"}}, attempt=2, minute=1)
    made.results({"b": {**STOP, "text": "4"}}, attempt=3, minute=2)
    made.reconcile()
    assert made.outputs("status", "text", "error_class", "attempts") == {
        "a": ("failed", "3 and", "truncated", 2),
        "b": ("ok", "4", None, 3),
        "c": ("ok", "new", None, 2),
    }


def test_an_answer_that_fits_counts_wherever_it_was_given(
    deployment: Deployment, declare: Declare
) -> None:
    """Both days asked at once; one got an answer by the schema, the other wrote nonsense later."""
    rows = [{"id": day, "day": day, "text": "a"} for day in "12"]
    made = lineage(deployment, declare, rows, prompt="Count {{ text }}", answer_schema=NUMBER)
    for day in "12":
        made.prepare(day)
    made.results({"1": {**STOP, "text": '{"x": 1}'}}, "1")
    made.results({"2": {**STOP, "text": "one"}}, "2", attempt=2, minute=1)
    for day in "12":
        made.reconcile(day)
        assert made.outputs("x", partition=day) == {day: 1}


def test_a_result_of_an_earlier_run_or_another_partition_is_reused(
    deployment: Deployment, declare: Declare
) -> None:
    """What the newest run of the partition computed is not; a repeated request is not either."""
    rows = [{"id": f"{day}-{text}", "day": day, "text": text} for day in "12" for text in "abc"]
    made = lineage(deployment, declare, rows, prompt="Count {{ text }}")
    made.prepare("1")
    made.results({"1-a": {**STOP, "text": "a"}}, "1", run="first")
    made.results({f"1-{one}": {**STOP, "text": one} for one in "bc"}, "1", run="second", minute=1)
    made.reconcile("1")
    assert made.outputs("reused", partition="1") == {"1-a": True, "1-b": False, "1-c": False}
    made.prepare("2")
    made.reconcile("2")
    assert made.outputs("reused", "text", partition="2") == {
        f"2-{one}": (True, one) for one in "abc"
    }


def test_an_old_answer_keeps_the_version_of_its_prompt(
    made: Lineage, deployment: Deployment, declare: Declare
) -> None:
    """Outputs materialised alone after the prompt changed do not call old answers new."""
    made.results({one: {**STOP, "text": one} for one in "abc"})
    changed = lineage(deployment, declare, ROWS, prompt="Count {{ id }} twice")
    changed.reconcile()
    assert changed.job.prompt_version != made.job.prompt_version
    assert set(changed.outputs("prompt_version").values()) == {made.job.prompt_version}
    take_in(changed.job, deployment, changed.tables, PARTITION)
    with pytest.raises(IncompleteError, match="changed after sorted_requests"):
        changed.reconcile()
    changed.prepare()
    changed.results({one: {**STOP, "text": one} for one in "abc"}, minute=1)
    changed.reconcile()
    assert set(changed.outputs("prompt_version").values()) == {changed.job.prompt_version}


def test_each_column_says_what_it_holds(deployment: Deployment, declare: Declare) -> None:
    """Our columns in our words, the job's in those of its schema."""
    made = lineage(deployment, declare, ROWS, answer_schema=NUMBER)
    made.prepare()
    made.results({one: {**STOP, "text": '{"x": 1}'} for one in "abc"})
    made.reconcile()
    shown = table_metadata(made.tables, "outputs", PARTITION, made.job.answer_columns)[
        "dagster/column_schema"
    ]
    described = {column.name: column.description for column in shown.columns}
    assert described["x"] == "The count."
    assert all(described.values())


def test_an_id_that_is_there_twice_or_not_asked_for_does_not_balance(made: Lineage) -> None:
    """The counts alone would not tell: one row is missing, another is there twice or a stranger."""
    made.results({one: {**STOP, "text": one} for one in "abc"})
    stats = made.reconcile()
    assert stats.ledger.balanced
    rows = made.tables.read("outputs", PARTITION)
    for ids, repeated, unknown in ((["a", "b", "b"], 1, 0), (["a", "b", "z"], 0, 1)):
        forged = rows.with_columns(custom_id=pl.Series(ids))
        made.tables.replace("outputs", PARTITION, forged)
        found = ledger(made.tables, PARTITION)
        assert (found.repeated, found.unknown, found.balanced) == (repeated, unknown, False)
