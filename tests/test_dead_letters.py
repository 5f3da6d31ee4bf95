"""Dead letters in the hands of a person: listed, exported, queued again, answered."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import MODEL, Declare
from support_outputs import LATE, REFUSED, STOP, Lineage, lineage

from acdc_dagster.cli import main
from acdc_dagster.deployment import Deployment
from acdc_dagster.reconcile.retry import RetryRound, plan_retries
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

DAYS = ("1", "2")


@pytest.fixture
def made(deployment: Deployment, declare: Declare, monkeypatch: pytest.MonkeyPatch) -> Lineage:
    """Two days; on each one row is refused and one is too late for ever."""
    rows = [{"id": f"{day}-{one}", "day": day} for day in DAYS for one in "abc"]
    found = lineage(deployment, declare, rows, retries={"transient": 0})
    for day in DAYS:
        found.prepare(day)
        results = {f"{day}-a": {**STOP, "text": "1"}, f"{day}-b": REFUSED, f"{day}-c": LATE}
        found.results(results, day)
        found.reconcile(day)
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    return found


def command(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["dead-letter", "counting", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("made")
def test_the_listing_says_which_why_and_what_to_do() -> None:
    """All of them, or those of a class or partition."""
    told = command()
    assert "counting: 4 dead letters" in told
    assert "permanent: 2\n    Correct the row" in told
    assert "1  1-b  permanent, 1 attempt: refused" in told
    some = command("--class", "transient", "--partition", "2")
    assert "counting: 1 dead letter\n" in some
    assert "2-c" in some
    assert "2-b" not in some
    assert "counting: 0 dead letters" in command("--class", "parse")


def test_the_export_is_a_batch_file_that_a_job_takes(
    made: Lineage, declare: Declare, tmp_path: Path
) -> None:
    """Each line is the request as it was; another job reads it without a rejected row."""
    file = tmp_path / "again.jsonl"
    assert f"Their requests are in {file}." in command("--partition", "1", "--export", str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["1-b", "1-c"]
    assert lines[0]["url"] == "/v1/chat/completions"
    assert lines[0]["body"]["messages"][-1]["content"] == "Count 1-b"
    job = declare("again", {"source": {"requests": str(file)}, "model": MODEL})
    tables = Tables(made.tables.root, job.name)
    assert take_in(job, made.deployment, tables, "all").rejected == 0
    assert tables.count("raw_requests") == 2


def test_what_is_queued_again_is_asked_and_leaves_when_answered(made: Lineage) -> None:
    """Only what was queued, only in its partition; the ledger holds after each step."""
    model = made.deployment.model(MODEL)

    def planned(day: str) -> RetryRound | None:
        return plan_retries(made.job, model, made.tables, day)

    assert planned("1") is None
    told = command("--partition", "1", "--class", "permanent", "--requeue")
    assert "Queued again. Run counting for: 1." in told
    assert planned("1") == RetryRound(2, {"permanent": 1})
    assert planned("2") is None
    made.results({"1-b": {**STOP, "text": "2"}}, "1", attempt=2, minute=1)
    assert planned("1") is None
    assert made.reconcile("1").ledger.balanced
    assert made.dead("error_class", partition="1") == {"1-c": "transient"}
    assert made.outputs("text", "attempts", partition="1")["1-b"] == ("2", 2)


def test_a_wrong_word_is_answered_with_the_right_ones(made: Lineage) -> None:
    """An unknown class or job, a file that cannot be written."""
    for arguments, word in (
        (["counting", "--class", "late"], "transient"),
        (["nobody"], "counting"),
        (["counting", "--partition", "1", "--export", f"{made.tables.root}/no/where"], "--export"),
    ):
        done = CliRunner().invoke(main, ["dead-letter", *arguments])
        assert done.exit_code != 0
        assert word in done.output
        assert "Traceback" not in done.output
