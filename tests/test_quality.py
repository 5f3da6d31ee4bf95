"""Checks of a partition's answers: rates, answers that say nothing, drift since the last one."""

import json
from typing import Any

import polars as pl
import pytest
from support import Declare
from support_outputs import LENGTH, PARTITION, REFUSED, STOP, Lineage, lineage

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.reconcile.quality import Finding, checked, degenerate, findings

KINDS = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "why": {"type": "string"}},
    "required": ["kind", "why"],
}


def found(made: Lineage, partition: str = PARTITION) -> dict[str, Finding]:
    return {one.name: one for one in findings(made.job, made.tables, partition)}


def test_rates_are_shares_of_all_requests(deployment: Deployment, declare: Declare) -> None:
    """Of ten: two refused, one cut, one that says nothing; each against its own limit."""
    made = lineage(deployment, declare, [{"id": one} for one in "abcdefghij"], checks={"parse": 0})
    made.prepare()
    made.results(
        {
            **{one: {**STOP, "text": "fine"} for one in "abcdef"},
            "g": REFUSED,
            "h": REFUSED,
            "i": {**LENGTH, "text": "so it"},
            "j": {**STOP, "text": " \n"},
        }
    )
    made.reconcile()
    told = found(made)
    assert {name: one.value for name, one in told.items()} == {
        "failures": 0.3,
        "truncated": 0.1,
        "degenerate": 0.1,
        "length_drift": 0.0,
    }
    assert not any(told[name].passed for name in ("failures", "truncated", "degenerate"))
    assert told["failures"].told == "3 of 10"
    assert told["length_drift"].told == "no partition before"


@pytest.mark.parametrize(
    ("text", "says_nothing"),
    [
        ("A short answer.", False),
        ("", True),
        (None, True),
        ("the cat " * 20, True),
        ("yes yes yes", False),
        (" ".join(f"word{n}" for n in range(40)), False),
    ],
)
def test_an_answer_that_says_nothing(
    deployment: Deployment, declare: Declare, text: str | None, says_nothing: bool
) -> None:
    """Empty, or a few words over and over; short repetition is no fault."""
    job = lineage(deployment, declare, [{"id": "a"}]).job
    rows = pl.DataFrame({"text": [text]}, schema={"text": pl.String})
    assert rows.select(degenerate(job)).item() is says_nothing


def test_an_answer_by_schema_is_empty_if_all_its_texts_are(
    deployment: Deployment, declare: Declare
) -> None:
    """A schema without texts has no empty answers."""
    job = lineage(deployment, declare, [{"id": "a"}], answer_schema=KINDS).job
    rows = pl.DataFrame({"kind": ["", "a", ""], "why": [" ", "", "b"]})
    assert rows.select(degenerate(job))[:, 0].to_list() == [True, False, False]


DAYS = ("1", "2", "3")


@pytest.fixture
def days(deployment: Deployment, declare: Declare) -> Lineage:
    """Two hundred rows a day; the second day fails as a whole."""
    rows = [{"id": f"{day}-{n}", "day": day} for day in DAYS for n in range(200)]
    return lineage(deployment, declare, rows, answer_schema=KINDS, checks={"length_drift": 0.1})


def answers(day: str, share_of_a: float, tokens: int) -> dict[str, dict[str, Any]]:
    """Answers, so many of which are a, of about so many tokens."""
    return {
        f"{day}-{n}": {
            **STOP,
            "text": json.dumps({"kind": "a" if n < 200 * share_of_a else "b", "why": "so"}),
            "completion_tokens": tokens + n % 10,
        }
        for n in range(200)
    }


def run(days: Lineage, day: str, results: dict[str, dict[str, Any]]) -> dict[str, Finding]:
    days.prepare(day)
    days.results(results, day)
    days.reconcile(day)
    return found(days, day)


def test_drift_is_told_against_the_last_good_partition(days: Lineage) -> None:
    """The same again is no drift; other shares of an enum, or longer answers, are."""
    run(days, "1", answers("1", 0.5, 20))
    run(days, "2", {f"2-{n}": REFUSED for n in range(200)})
    same = run(days, "3", answers("3", 0.5, 20))
    assert same["answer_drift"].value == same["length_drift"].value == 0.0
    assert same["answer_drift"].told == "against partition 1"
    days.results(answers("3", 1.0, 24), "3", attempt=2, minute=3)
    days.reconcile("3")
    other = found(days, "3")
    assert 0.2 < other["answer_drift"].value < 0.5
    assert 0.1 < other["length_drift"].value < 0.4
    assert not other["answer_drift"].passed
    assert not other["length_drift"].passed


def test_chance_is_no_drift(deployment: Deployment, declare: Declare) -> None:
    """Five answers against five: 3 to 2 and 2 to 3 are the same distribution."""
    rows = [{"id": f"{day}-{n}", "day": day} for day in "12" for n in range(5)]
    made = lineage(deployment, declare, rows, answer_schema=KINDS)
    for day, of_a in (("1", 3), ("2", 2)):
        made.prepare(day)
        texts = [json.dumps({"kind": "a" if n < of_a else "b", "why": "so"}) for n in range(5)]
        made.results({f"{day}-{n}": {**STOP, "text": text} for n, text in enumerate(texts)}, day)
        made.reconcile(day)
    assert found(made, "2")["answer_drift"].value == 0.0


def test_a_job_has_the_checks_that_its_answers_can_be_held_to(
    deployment: Deployment, declare: Declare
) -> None:
    """No parse failures of free text, no drift without enums, none that is set to null."""
    rows = [{"id": "a"}]
    free = lineage(deployment, declare, rows, checks={"truncated": None}).job
    assert checked(free) == ["failures", "degenerate", "length_drift"]
    by_schema = lineage(deployment, declare, rows, answer_schema=KINDS).job
    assert checked(by_schema)[-1] == "answer_drift"
    with pytest.raises(DeclarationError, match=r"checks\.failures"):
        lineage(deployment, declare, rows, checks={"failures": 5})
