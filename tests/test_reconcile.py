"""Answers back to rows: what models really write, and stages materialised out of order."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from support import MODEL, Declare, write_table

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, IncompleteError
from acdc_dagster.job import Job
from acdc_dagster.planning.stage import profile
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.reconcile.answers import check_columns, parse_answers
from acdc_dagster.reconcile.stage import reconcile
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]
PARTITION = "all"


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.fixture
def job(deployment: Deployment, declare: Declare) -> Callable[..., Job]:
    """A job over three rows with these properties in its answer schema."""

    def make(ids: str = "abc", prompt: str = "Count {{ id }}", **properties: Any) -> Job:
        write_table(deployment.root / "rows", [{"id": one} for one in ids])
        attributes = {
            "source": {"table": "rows", "id_column": "id"},
            "model": MODEL,
            "answer_schema": schema(**properties),
        }
        return declare("counting", attributes, prompt_dot_md=prompt)

    return make


def prepare(job: Job, deployment: Deployment, tables: Tables) -> None:
    """Stages 1 to 3."""
    model = deployment.model(MODEL)
    take_in(job, deployment, tables, PARTITION)
    sort_requests(model, tables, PARTITION, block_size=32)
    profile(job, deployment, model, tables, PARTITION)


def answer(tables: Tables, text: str) -> None:
    """Give every distinct request this answer, as a worker would commit it."""
    now = datetime.now(UTC)
    done = {"partition_key": PARTITION, "attempt": 1, "text": text, "finish_reason": "stop"}
    hashes = tables.read("sorted_requests", PARTITION)["request_hash"]
    rows = [{**done, "request_hash": one, "started_at": now, "finished_at": now} for one in hashes]
    tables.appender("inference", "shard").append(rows)


def through(job: Job, deployment: Deployment, tables: Tables) -> None:
    """All five stages, every answer the integer 1."""
    prepare(job, deployment, tables)
    answer(tables, '{"x": 1}')
    reconcile(job, tables, PARTITION)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ({"type": "integer"}, '{"x": 3}', 3),
        ({"type": "integer"}, '{"x": 3.0}', 3),
        ({"type": "number"}, '{"x": 3}', 3.0),
        ({"type": ["string", "null"]}, '{"x": null}', None),
        ({"type": ["string", "null"]}, '{"x": "é"}', "é"),
        ({"type": "array"}, '{"x": ["é", 1]}', '["é", 1]'),
        ({"enum": ["a", "b"]}, '{"x": "b"}', "b"),
    ],
)
def test_an_answer_that_fits_becomes_a_typed_value(
    job: Callable[..., Job], kind: Any, text: str, value: Any
) -> None:
    """Each JSON type has its column type; a value that may be null has that of its other type."""
    parsed = parse_answers(job(x=kind), pl.Series([text]))
    assert parsed.columns["x"].to_list() == [value]
    assert parsed.errors.to_list() == [None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ({"type": "integer"}, '{"x": 99999999999999999999}'),
        ({"type": "integer"}, '{"x": 1e30}'),
        ({"type": "number"}, '{"x": ' + "9" * 400 + "}"),
        ({"type": "string"}, '{"x": "\\ud83d"}'),
        ({"type": "array"}, '{"x": ["\\ud800"]}'),
        ({"type": "integer"}, '{"x": "3"}'),
        ({"type": "integer"}, '{"x": 3'),
        ({"type": "integer"}, ""),
        ({"type": "integer"}, "[" * 5000),
    ],
)
def test_an_ugly_answer_costs_its_neighbours_nothing(
    job: Callable[..., Job], kind: Any, text: str
) -> None:
    """What no column can hold is one row's parse error, with a reason."""
    good = {"integer": '{"x": 1}', "number": '{"x": 1}', "string": '{"x": "a"}'}
    fine = good.get(kind["type"], '{"x": []}')
    parsed = parse_answers(job(x=kind), pl.Series([fine, text, fine]))
    assert parsed.errors.is_null().to_list() == [True, False, True]
    assert parsed.columns["x"].is_null().to_list() == [False, True, False]


def test_a_property_that_changed_its_type_stops_before_anything_runs(
    job: Callable[..., Job], deployment: Deployment, tables: TablesOf
) -> None:
    """Delta would quietly bring 1.75 to the integer 1; the fault names column and types instead."""
    before = job(x={"type": "integer"})
    through(before, deployment, tables(before))
    after = job(x={"type": "number"})
    with pytest.raises(DeclarationError, match=r"'x'.*Float64.*'x' of type Int64"):
        check_columns(after, tables(after))
    with pytest.raises(DeclarationError, match="'X'"):
        check_columns(job(X={"type": "integer"}), tables(after))
    check_columns(job(x={"type": "integer"}, y={"type": "string"}), tables(after))


OURS = ("reasoning", "Status", "cost", "partition_key")
HELPERS = ("message", "run_id", "elsewhere", "attempt", "given_up", "answer", "error", "errors")


def test_a_property_may_have_any_name(
    job: Callable[..., Job], deployment: Deployment, tables: TablesOf
) -> None:
    """That of a column of ours gets a prefix; names that stage 5 uses on its way are free."""
    names = (*OURS, *HELPERS)
    made = job(**{name: {"type": "string"} for name in names})
    prepare(made, deployment, tables(made))
    answer(tables(made), json.dumps({name: f"the {name}" for name in names}))
    reconcile(made, tables(made), PARTITION)
    row = tables(made).read("outputs", PARTITION).row(0, named=True)
    assert {name: row[name] for name in HELPERS} == {name: f"the {name}" for name in HELPERS}
    assert {name: row[f"answer_{name}"] for name in OURS} == {name: f"the {name}" for name in OURS}
    assert (row["status"], row["reasoning"], row["cost"]) == ("ok", None, None)
    described = {column.name: column.description for column in made.answer_columns}
    assert described["answer_cost"] == "The property cost of the answer."


@pytest.mark.parametrize("names", [("a", "A"), ("cost", "answer_cost"), ("Cost", "cost")])
def test_properties_that_would_be_one_column_are_refused_at_once(
    job: Callable[..., Job], names: tuple[str, ...]
) -> None:
    """Names that differ by case only, or have the prefix of another."""
    with pytest.raises(DeclarationError, match="Rename these properties"):
        job(**{name: {"type": "string"} for name in names})


def test_outputs_do_not_follow_rows_that_were_never_sorted(
    job: Callable[..., Job], deployment: Deployment, tables: TablesOf
) -> None:
    """raw_requests materialised alone: outputs says which stage is missing, and writes nothing."""
    before = job(x={"type": "integer"})
    through(before, deployment, tables(before))
    after = job("xyz", x={"type": "integer"})
    take_in(after, deployment, tables(after), PARTITION)
    with pytest.raises(IncompleteError, match="changed after sorted_requests"):
        reconcile(after, tables(after), PARTITION)
    assert sorted(tables(after).read("outputs", PARTITION)["custom_id"]) == ["a", "b", "c"]
