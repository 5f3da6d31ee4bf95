"""Which requests are asked again, how, and how often."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import MODEL, Declare, request_line
from support_outputs import LATE, LENGTH, PARTITION, REFUSED, STOP, Lineage, lineage
from vision_model import image_part, make_vision_folder, png, text_part

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import IncompleteError
from acdc_dagster.inference.left import left_of, requests_of
from acdc_dagster.models import found_model
from acdc_dagster.planning.plan import Shard
from acdc_dagster.planning.stage import profile, read_plan, read_retry_plan
from acdc_dagster.prefix.sequences import token_list
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.reconcile.dead_letters import dead_letters, requeue
from acdc_dagster.reconcile.retry import RetryRound, plan_retries
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "maximum": 9}},
    "required": ["x"],
}
GOOD, BAD = {**STOP, "text": '{"x": 3}'}, {**STOP, "text": '{"x": 30}'}


@pytest.fixture
def made(deployment: Deployment, declare: Declare) -> Lineage:
    """Five rows whose answers have a schema; two of them ask the same."""
    rows = [{"id": one, "text": "e" if one == "f" else one} for one in "abcdef"]
    found = lineage(
        deployment,
        declare,
        rows,
        prompt="Count {{ text }}",
        answer_schema=SCHEMA,
        sampling={"max_tokens": 16},
        retries={"transient": 1, "truncated": {"max_tokens": 64}},
    )
    found.prepare()
    return found


def planned(made: Lineage) -> RetryRound | None:
    return plan_retries(made.job, made.deployment.model(MODEL), made.tables, PARTITION)


def asked(made: Lineage) -> dict[str, dict[str, Any]]:
    """custom_id → its row of `retries`, with the prompt as text."""
    rows = made.tables.read("retries", PARTITION)
    names = made.tables.read("request_map", PARTITION, ["custom_id", "request_hash"])
    tokenizer = ModelTokenizer(made.deployment.model(MODEL).path)
    return {
        row["custom_id"]: {
            **row,
            "prompt": tokenizer.decode(token_list(row["token_ids"], row["prompt_tokens"])),
        }
        for row in rows.join(names, on="request_hash").iter_rows(named=True)
    }


def test_each_class_is_asked_again_in_its_way(made: Lineage) -> None:
    """As it was, stricter, with more room; what is finished or refused is left alone."""
    made.results({"a": GOOD, "b": LATE, "c": BAD, "d": {**LENGTH, "text": "{"}, "e": REFUSED})
    assert planned(made) == RetryRound(2, {"parse": 1, "transient": 1, "truncated": 1})
    rows, first = asked(made), made.tables.read("sorted_requests", PARTITION)
    assert set(rows) == {"b", "c", "d"}
    assert {row["attempt"] for row in rows.values()} == {2}
    of_first = dict(first.select("request_hash", "token_ids").iter_rows())
    for name in "bd":
        assert rows[name]["token_ids"] == of_first[rows[name]["request_hash"]]
    assert rows["c"]["prompt_tokens"] > rows["b"]["prompt_tokens"]
    assert json.dumps(SCHEMA) in rows["c"]["prompt"]
    assert [rows[name]["max_tokens"] for name in "bcd"] == [16, 16, 64]
    assert json.loads(rows["d"]["sampling"])["structured_outputs"]["json"] == SCHEMA
    assert sorted(row["position"] for row in rows.values()) == [0, 1, 2]


def test_a_failure_is_not_asked_again_for_ever(made: Lineage) -> None:
    """Each class as often as the job says; then the row is a dead letter with its attempts."""
    made.results({"a": GOOD, "b": LATE, "c": BAD, "d": {**LENGTH, "text": "{"}, "e": GOOD})
    assert planned(made) is not None
    made.results({"b": LATE, "c": LATE, "d": {**LENGTH, "text": '{"x": '}}, attempt=2, minute=1)
    assert planned(made) == RetryRound(3, {"transient": 1})
    assert set(asked(made)) == {"c"}
    made.results({"c": BAD}, attempt=3, minute=2)
    assert planned(made) is None
    assert made.tables.count("retries", PARTITION) == 0
    made.reconcile()
    assert made.dead("error_class", "attempts") == {
        "b": ("transient", 2),
        "c": ("parse", 3),
        "d": ("truncated", 2),
    }


def test_the_answer_of_a_later_attempt_is_the_answer(made: Lineage) -> None:
    """It serves each row that asked the same, and nothing is left to ask."""
    made.results({"a": GOOD, "b": GOOD, "c": GOOD, "d": GOOD, "e": BAD})
    assert planned(made) == RetryRound(2, {"parse": 1})
    made.results({"e": GOOD}, attempt=2, minute=1)
    assert planned(made) is None
    made.reconcile()
    assert made.outputs("x", "attempts")["e"] == made.outputs("x", "attempts")["f"] == (3, 2)
    assert made.dead() == {}


def test_endless_white_space_is_asked_again_stricter(made: Lineage) -> None:
    """The answer was cut, but no larger cap would help."""
    blank = {**LENGTH, "text": '{"x":' + " \n" * 40}
    made.results({**dict.fromkeys("abcde", GOOD), "b": blank})
    assert planned(made) == RetryRound(2, {"parse": 1})


def test_requests_that_differed_only_in_their_cap_each_get_an_answer(
    deployment: Deployment, declare: Declare
) -> None:
    """With the larger cap they are one prompt, and still two rows of `retries`."""
    from support import request_line

    lines = [request_line(f"r{cap}", "Tell", max_tokens=cap) for cap in (4, 8)]
    (deployment.root / "two.jsonl").write_text("\n".join(lines))
    job = declare(
        "two",
        {
            "source": {"requests": "two.jsonl"},
            "model": MODEL,
            "retries": {"truncated": {"max_tokens": 64}},
        },
    )
    from acdc_dagster.tables import Tables

    made = Lineage(job, deployment, Tables(deployment.tables_root, job.name))
    made.prepare()
    made.results({name: {**LENGTH, "text": "so"} for name in ("r4", "r8")})
    assert planned(made) == RetryRound(2, {"truncated": 2})
    rows = made.tables.read("retries", PARTITION).sort("position")
    assert rows["request_hash"].n_unique() == 2
    assert rows["max_tokens"].to_list() == [64, 64]
    assert rows["lcp"].to_list() == [0, rows["prompt_tokens"][1]]


def test_the_shards_of_a_round_cover_it(made: Lineage) -> None:
    """A plan like the partition's, over what is asked again; without any there is none."""
    with pytest.raises(IncompleteError, match="asked again"):
        read_retry_plan(made.tables, PARTITION)
    made.results({**dict.fromkeys("abcde", LATE)})
    assert planned(made) == RetryRound(2, {"transient": 5})
    plan = read_retry_plan(made.tables, PARTITION)
    assert [(shard.start, shard.stop) for shard in plan.shards] == [(0, 5)]


def test_what_is_queued_again_has_all_its_attempts_again(made: Lineage) -> None:
    """Also what no retry is allowed for; once answered it is left alone."""
    made.results({**dict.fromkeys("abcd", GOOD), "e": REFUSED})
    assert planned(made) is None
    made.reconcile()
    requeue(made.tables, dead_letters(made.tables).filter(pl.col("custom_id") == "e"))
    assert planned(made) == RetryRound(2, {"permanent": 1})
    made.results({"e": LATE}, attempt=2, minute=5)
    assert planned(made) == RetryRound(3, {"transient": 1})
    made.results({"e": GOOD}, attempt=3, minute=6)
    assert planned(made) is None


def test_a_clock_that_lags_asks_nothing_again(made: Lineage) -> None:
    """The attempt after a row was queued again counts, whenever its worker says that it ended."""
    made.results({**dict.fromkeys("abcd", GOOD), "e": REFUSED}, minute=60)
    made.reconcile()
    requeue(made.tables, dead_letters(made.tables))
    assert planned(made) == RetryRound(2, {"permanent": 1})
    made.results({"e": REFUSED}, attempt=2, minute=1)
    assert planned(made) is None
    made.reconcile()
    assert made.dead("attempts")["e"] == 2


def test_a_bad_hour_elsewhere_is_no_failure_here(deployment: Deployment, declare: Declare) -> None:
    """Another day asked the same: its refusal counts here, its lateness does not."""
    rows = [{"id": f"{day}-{one}", "day": day, "text": one} for day in "12" for one in "ab"]
    made = lineage(deployment, declare, rows, prompt="Count {{ text }}", retries={"transient": 1})
    for day in "12":
        made.prepare(day)
    made.results({"1-a": LATE, "1-b": REFUSED}, "1")
    made.results({"1-a": LATE}, "1", attempt=2, minute=1)

    def planned_on(day: str) -> RetryRound | None:
        return plan_retries(made.job, deployment.model(MODEL), made.tables, day)

    assert planned_on("1") is None
    shard = read_plan(made.tables, "2").shards[0]
    assert left_of(made.tables, "2", shard).requests == 1
    with pytest.raises(IncompleteError, match="'2-a'"):
        made.reconcile("2")
    made.results({"2-a": LATE}, "2", minute=2)
    assert planned_on("2") == RetryRound(2, {"transient": 1})
    again = read_retry_plan(made.tables, "2").shards[0]
    assert left_of(made.tables, "2", again, attempt=2).requests == 1
    made.results({"2-a": LATE}, "2", attempt=2, minute=3)
    assert planned_on("2") is None
    for day in "12":
        assert made.reconcile(day).ledger.balanced
        assert made.dead("error_class", "attempts", partition=day) == {
            f"{day}-a": ("transient", 2),
            f"{day}-b": ("permanent", 1),
        }
    requeue(made.tables, dead_letters(made.tables, "2", "transient"))
    assert planned_on("2") == RetryRound(3, {"transient": 1})
    made.results({"2-a": {**STOP, "text": "1"}}, "2", attempt=3, minute=4)
    for day in "12":  # an answer serves both
        assert planned_on(day) is None
        made.reconcile(day)
        assert made.outputs("text", partition=day) == {f"{day}-a": "1"}


def test_an_image_is_shown_again(deployment: Deployment, declare: Declare, tmp_path: Path) -> None:
    """A request that is asked again has the images that it had, and the worker gets them."""
    vision = found_model(MODEL, make_vision_folder(tmp_path / "vision"), None, "")
    parts = [text_part("What?"), image_part(png(1)), image_part(png(2))]
    (deployment.root / "requests.jsonl").write_text(request_line("a", parts))
    again = {"truncated": {"max_tokens": 64}}
    source = {"requests": "requests.jsonl"}
    job = declare("seen", {"source": source, "model": MODEL, "retries": again})
    made = Lineage(job, deployment, Tables(deployment.tables_root, job.name))
    take_in(job, deployment, made.tables, "all")
    sort_requests(vision, made.tables, "all", block_size=32)
    profile(job, deployment, vision, made.tables, "all")
    made.results({"a": {**LENGTH, "text": "{"}}, "all")
    assert plan_retries(job, vision, made.tables, "all") == RetryRound(2, {"truncated": 1})
    (row,) = made.tables.read("retries", "all").to_dicts()
    (first,) = made.tables.read("sorted_requests", "all").to_dicts()
    assert (row["images"], row["token_ids"]) == (first["images"], first["token_ids"])
    left = left_of(made.tables, "all", Shard(number=0, start=0, stop=1), attempt=2)
    (request,) = requests_of(made.tables, "all", left, at_once=1)
    assert [image.content for image in request.images] == [png(1), png(2)]
    assert request.max_tokens == 64
