"""The evaluation set: asked with the rows, scored, and held against the last good run."""

import json
from typing import Any

import dagster as dg
import pytest
from support import MODEL, Declare, request_line
from support_outputs import LATE, PARTITION, REFUSED, START, STOP, Lineage, lineage

from acdc_dagster.definitions import build
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, IncompleteError
from acdc_dagster.prefix.stage import UnfitError, sort_requests
from acdc_dagster.prices import Prices
from acdc_dagster.reconcile.costs import RunCosts
from acdc_dagster.reconcile.evaluation import Evaluation, evaluate
from acdc_dagster.reconcile.quality import findings
from acdc_dagster.reconcile.run_record import record_run
from acdc_dagster.requests.prompts.evaluation import evaluation_requests
from acdc_dagster.tables import Tables

ITEMS: list[dict[str, Any]] = [
    {"id": "exact", "row": {"id": "a"}, "expected": "yes"},
    {"id": "fields", "row": {"id": "f"}, "expected": {"x": 1, "y": None}},
    {"id": "regex", "row": {"id": "r"}, "matches": "^[0-9]+$"},
    {"id": "own", "row": {"id": "o"}, "expected": 3, "scorer": "own_scorer:near"},
]
SCORER = """
def near(text, expected):
    return 1 / (1 + abs(float(text) - expected))
"""


@pytest.fixture
def write(deployment: Deployment) -> Any:
    """Writes the evaluation set of the job `counting`."""

    def put(items: list[dict[str, Any]]) -> None:
        folder = deployment.root / "assets" / "counting"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "own_scorer.py").write_text(SCORER)
        (folder / "eval.jsonl").write_text("\n".join(map(json.dumps, items)) + "\n\n")

    return put


def answer(made: Lineage, answers: dict[str, dict[str, Any]], attempt: int = 1) -> None:
    """Give the set's questions these answers, as the worker of the partition would."""
    asked = made.tables.read("evaluation", PARTITION, ["item", "request_hash"])
    rows = [
        {
            **answers[name],
            "partition_key": PARTITION,
            "attempt": attempt,
            "request_hash": request_hash,
            "finished_at": START,
        }
        for name, request_hash in asked.iter_rows()
        if name in answers
    ]
    made.tables.appender("inference", f"evaluation/{attempt}").append(rows)


def test_the_set_is_asked_with_the_rows_and_counts_as_none(
    deployment: Deployment, declare: Declare, write: Any
) -> None:
    """The same prompt, in the same order; a row that asks the same has a request of its own."""
    write(ITEMS)
    made = lineage(deployment, declare, [{"id": one} for one in "ab"])
    made.prepare()
    assert made.tables.count("sorted_requests", PARTITION) == 2 + len(ITEMS)
    assert made.tables.count("request_map", PARTITION) == 2
    sorted_again = sort_requests(
        deployment.model(MODEL),
        made.tables,
        PARTITION,
        32,
        evaluation=evaluation_requests(made.job),
    )
    assert (sorted_again.requests, sorted_again.distinct, sorted_again.rejected) == (2, 2, 0)
    mapped = made.tables.read("request_map", PARTITION)["request_hash"]
    asked = made.tables.read("evaluation", PARTITION)
    assert not set(asked["request_hash"]) & set(mapped)
    prompts = made.tables.read("sorted_requests", PARTITION)
    (row,) = made.tables.read("request_map", PARTITION).filter(custom_id="a")["request_hash"]
    (item,) = asked.filter(item="exact")["request_hash"]
    of_row, of_item = (prompts.filter(request_hash=one)["token_ids"] for one in (row, item))
    assert of_row.to_list() == of_item.to_list()
    made.results({"a": {**STOP, "text": "1"}, "b": REFUSED})
    answer(made, {item["id"]: {**STOP, "text": "yes"} for item in ITEMS})
    stats = made.reconcile()
    assert (stats.ledger.input_rows, stats.ledger.balanced, stats.requests) == (2, True, 2)


@pytest.mark.parametrize(
    ("name", "result", "score"),
    [
        ("exact", {**STOP, "text": " yes\n"}, 1.0),
        ("exact", {**STOP, "text": "yes, it is"}, 0.0),
        ("fields", {**STOP, "text": '{"x": 1, "y": null, "z": 3}'}, 1.0),
        ("fields", {**STOP, "text": '{"x": 1, "y": 2}'}, 0.5),
        ("fields", {**STOP, "text": '{"x": 1}'}, 0.5),
        ("fields", {**STOP, "text": "[1]"}, 0.0),
        ("fields", {**STOP, "text": "x is 1"}, 0.0),
        ("regex", {**STOP, "text": "12"}, 1.0),
        ("regex", {**STOP, "text": "12a"}, 0.0),
        ("own", {**STOP, "text": "4"}, 0.5),
        ("exact", REFUSED, 0.0),
        ("exact", LATE, None),
    ],
)
def test_an_answer_is_scored_as_its_item_says(
    deployment: Deployment,
    declare: Declare,
    write: Any,
    name: str,
    result: dict[str, Any],
    score: float | None,
) -> None:
    """A failure of the engine is no wrong answer."""
    write([item for item in ITEMS if item["id"] == name])
    made = lineage(deployment, declare, [{"id": "z"}])
    made.prepare()
    with pytest.raises(IncompleteError, match=r"eval\.jsonl"):
        evaluate(made.job, made.tables, PARTITION)
    answer(made, {name: result})
    found = evaluate(made.job, made.tables, PARTITION)
    assert found is not None
    assert (found.score, found.scored) == (score, 0 if score is None else 1)
    assert made.tables.read("evaluation", PARTITION)["score"].to_list() == [score]


def test_a_drop_is_told_until_the_score_is_back(
    deployment: Deployment, declare: Declare, write: Any
) -> None:
    """Against the last run that was good, not the last; another set begins anew."""
    items = [{"id": f"{n}", "row": {"id": f"{n}"}, "expected": "yes"} for n in range(10)]
    write(items)
    made = lineage(deployment, declare, [{"id": "z"}])

    def run(name: str, right: int) -> tuple[Evaluation, bool]:
        made.prepare()
        for table in ("inference", "outputs"):
            made.tables.replace(table, PARTITION, made.tables.read(table).clear())
        made.results({"z": {**STOP, "text": "1"}}, run=name)
        texts = ["yes"] * right + ["no"] * (10 - right)
        answer(
            made,
            {f"{n}": {**STOP, "text": text} for n, text in enumerate(texts)},
            attempt=1 + made.tables.count("runs"),
        )
        stats = made.reconcile()
        found = evaluate(made.job, made.tables, PARTITION)
        assert found is not None
        costs = RunCosts.of(made.tables, Prices())
        record_run(made.job, made.tables, PARTITION, name, costs, stats, found)
        told = findings(made.job, made.tables, PARTITION, found)
        return found, next(one for one in told if one.name == "evaluation").passed

    assert run("first", 9)[1]
    dropped, passed = run("second", 6)
    assert (dropped.score, dropped.baseline, passed) == (0.6, 0.9, False)
    still, passed = run("third", 7)
    assert (still.baseline, passed) == (0.9, False)
    assert str(still) == "score 0.700 of 10 items, 0.900 before"
    back, passed = run("fourth", 10)
    assert (back.baseline, passed) == (0.9, True)
    items[0]["expected"] = "no"
    write(items)
    made = Lineage(
        declare("counting", made.job.declared.model_dump(exclude_none=True, mode="json")),
        deployment,
        made.tables,
    )
    other, passed = run("fifth", 5)
    assert (other.baseline, passed) == (None, True)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"id": "a"', "eval.jsonl:2"),
        ('{"id": "a", "row": {}, "expected": "x", "answer": 1}', "answer"),
        ('{"id": "a", "body": {}, "expected": "x"}', "give row"),
        ('{"id": "a", "row": {}}', "expected and matches"),
        ('{"id": "a", "row": {}, "expected": "x", "matches": "y"}', "expected and matches"),
        ('{"id": "a", "row": {}, "expected": 3}', "a text, an object"),
        ('{"id": "a", "row": {}, "expected": {}}', "a text, an object"),
        ('{"id": "a", "row": {}, "matches": "("}', "regular expression"),
        ('{"id": "first", "row": {}, "expected": "x"}', "twice"),
    ],
)
def test_a_wrong_line_is_named(
    deployment: Deployment, declare: Declare, write: Any, line: str, told: str
) -> None:
    """Before anything runs, with its number and what is wrong."""
    write([])
    first = '{"id": "first", "row": {"id": "z"}, "expected": "x"}'
    (deployment.root / "assets" / "counting" / "eval.jsonl").write_text(f"{first}\n{line}\n")
    with pytest.raises(DeclarationError) as error:
        lineage(deployment, declare, [{"id": "z"}])
    assert "eval.jsonl:2" in str(error.value)
    assert told in str(error.value)


def test_an_item_that_cannot_be_asked_is_named(
    deployment: Deployment, declare: Declare, write: Any
) -> None:
    """A row that the prompt cannot take, a prompt that no context can, a scorer that is not one."""
    write([{"id": "empty", "row": {}, "expected": "x"}])
    with pytest.raises(DeclarationError, match="'empty' is no valid request"):
        lineage(deployment, declare, [{"id": "z"}]).prepare()
    write([{"id": "long", "row": {"id": "word " * 20_000}, "expected": "x"}])
    with pytest.raises(UnfitError, match=r"'long'.*tokens"):
        lineage(deployment, declare, [{"id": "z"}]).prepare()
    write([{"id": "own", "row": {"id": "o"}, "expected": 1, "scorer": "own_scorer:far"}])
    made = lineage(deployment, declare, [{"id": "z"}])
    made.prepare()
    answer(made, {"own": {**STOP, "text": "1"}})
    with pytest.raises(DeclarationError, match="own_scorer:far cannot be imported"):
        evaluate(made.job, made.tables, PARTITION)


def test_a_job_with_request_files_has_bodies(deployment: Deployment, declare: Declare) -> None:
    """The job's model is put in where a body has none."""
    (deployment.root / "rows.jsonl").write_text(request_line("r"))
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    item = {"id": "one", "body": body, "expected": "Hello"}
    declared = {"source": {"requests": "rows.jsonl"}, "model": MODEL}
    job = declare("asked", declared, eval_dot_jsonl=json.dumps(item))
    made = Lineage(job, deployment, Tables(deployment.tables_root, job.name))
    made.prepare()
    answer(made, {"one": {**STOP, "text": "Hello"}})
    found = evaluate(job, made.tables, PARTITION)
    assert found is not None
    assert found.score == 1.0


def test_the_score_is_shown_and_checked(
    deployment: Deployment, declare: Declare, write: Any
) -> None:
    """On the asset `outputs`: a number that the UI plots, and a check that warns."""
    write(ITEMS[:1])
    made = lineage(deployment, declare, [{"id": "z"}])
    made.prepare()
    made.results({"z": {**STOP, "text": "1"}})
    answer(made, {"exact": {**STOP, "text": "yes"}})
    done = (
        build(deployment)
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            asset_selection=[dg.AssetKey([made.job.name, "outputs"])],
            instance=dg.DagsterInstance.ephemeral(),
        )
    )
    (event,) = done.asset_materializations_for_node(f"{made.job.name}__outputs")
    assert event.metadata["evaluation_score"].value == 1.0
    passed = {one.check_name: one.passed for one in done.get_asset_check_evaluations()}
    assert passed["evaluation_drop"]
    assert made.tables.read("runs", PARTITION)["evaluation_kept"].to_list() == [True]
