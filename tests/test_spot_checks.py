"""The sample that a person reads: what is in it, and how the UI shows it."""

import json
from typing import Any

import dagster as dg
from support import Declare
from support_outputs import PARTITION, REFUSED, STOP, Lineage, lineage
from vision_model import image_part, png

from acdc_dagster.definitions import build
from acdc_dagster.deployment import Deployment
from acdc_dagster.lineage import markdown
from acdc_dagster.reconcile.spot_checks import asked_as_text, spot_check
from acdc_dagster.requests.body import CHAT, COMPLETIONS


def sampled(made: Lineage) -> dict[str, tuple[Any, ...]]:
    rows = spot_check(made.job, made.tables, PARTITION)
    assert rows.height == made.tables.count("spot_checks", PARTITION)
    return {row[0]: row[1:] for row in rows.select("custom_id", "input", "text").iter_rows()}


def test_a_twentieth_is_shown_with_what_was_asked(deployment: Deployment, declare: Declare) -> None:
    """Of 400 rows 20, the same 20 whatever the answers are."""
    made = lineage(
        deployment,
        declare,
        [{"id": f"r{n}"} for n in range(400)],
        prompt="<!-- system -->\nBe brief.\n<!-- user -->\nCount {{ id }}",
    )
    made.prepare()
    made.results({f"r{n}": {**STOP, "text": f"old {n}"} for n in range(400)})
    made.reconcile()
    old = sampled(made)
    assert len(old) == 20
    name, (asked, answer) = next(iter(old.items()))
    assert asked == f"system: Be brief.\n\nuser: Count {name}"
    assert answer == f"old {name[1:]}"
    made.results({f"r{n}": {**STOP, "text": "new"} for n in range(400)}, attempt=2, minute=1)
    made.reconcile()
    assert sampled(made) == {name: (asked, "new") for name, (asked, _) in old.items()}


def test_few_rows_are_all_shown(deployment: Deployment, declare: Declare) -> None:
    """Five per cent of little says nothing; and of nothing there is nothing to show."""
    made = lineage(deployment, declare, [{"id": one} for one in "abc"])
    made.prepare()
    made.results({"a": {**STOP, "text": "1"}, "b": {**STOP, "text": "2"}, "c": REFUSED})
    made.reconcile()
    assert sampled(made).keys() == {"a", "b"}
    made.tables.replace("outputs", PARTITION, made.tables.read("outputs").clear())
    assert sampled(made) == {}


def test_what_is_no_text_is_told_as_such() -> None:
    """Token ids are listed, and an image is marked."""
    body = '{"model": "m", "prompt": [5, 17]}'
    assert asked_as_text(COMPLETIONS, body) == "token ids: 5, 17"
    content = [image_part(png(200)), {"type": "text", "text": "What is it?"}]
    chat = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]})
    assert asked_as_text(CHAT, chat) == "user: [image]\nWhat is it?"


def test_what_a_model_writes_stays_text() -> None:
    """No markup, no link, no image, no cell of its own, and no more than a line."""
    ugly = "a | b\n# c ![x](http://y) <img src=z onerror=1> `d`"
    cell = markdown.table(["one"], [[ugly]]).splitlines()
    assert len(cell) == 3
    assert cell[2] == (r"| a \| b ⏎ \# c \!\[x\]\(http\://y\) \<img src\=z onerror\=1\> \`d\` |")
    assert len(markdown.table(["one"], [["x" * 5000]])) < 500


def test_outputs_show_their_checks_and_the_sample(deployment: Deployment, declare: Declare) -> None:
    """Materialised through Dagster: one check blocks, the others warn, the sample is Markdown."""
    made = lineage(deployment, declare, [{"id": one} for one in "abc"])
    made.prepare()
    made.results({"a": {**STOP, "text": "*1*"}, "b": {**STOP, "text": "2"}, "c": REFUSED})
    definitions = build(deployment)
    key = dg.AssetKey([made.job.name, "outputs"])
    done = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        asset_selection=[key], instance=dg.DagsterInstance.ephemeral()
    )
    assert done.success
    passed = {
        one.check_name: (one.passed, one.severity.value)
        for one in done.get_asset_check_evaluations()
    }
    assert passed == {
        "every_input_row_is_accounted_for": (True, "ERROR"),
        "failure_rate": (False, "WARN"),
        "truncation_rate": (True, "WARN"),
        "degenerate_answers": (True, "WARN"),
        "length_drift": (True, "WARN"),
    }
    (event,) = done.asset_materializations_for_node(f"{made.job.name}__outputs")
    shown = event.metadata["spot_check"]
    assert isinstance(shown, dg.MarkdownMetadataValue)
    assert r"| a | user\: Count a | \*1\* | ok |" in shown.value
