"""Whatever happens in whatever order, each row ends in one place.

Chance decides what happens; a bookkeeping of prompts and of what they were told, that knows nothing
of tables, says where each row must be afterwards.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import MODEL, Declare, write_table
from support_outputs import LATE, LENGTH, REFUSED, STOP, Lineage, lineage

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import IncompleteError
from acdc_dagster.reconcile.dead_letters import dead_letters, requeue
from acdc_dagster.reconcile.ledger import ledger
from acdc_dagster.reconcile.retry import plan_retries
from acdc_dagster.schemas import TableName

DAYS = ("mon", "tue")
TEXTS = [f"text {number}" for number in range(5)]
OUTCOMES: dict[str, dict[str, Any]] = {
    "ok": {**STOP, "text": '{"x": 1}'},
    "parse": {**STOP, "text": "one"},
    "cut": {**LENGTH, "text": '{"x":'},
    "late": LATE,
    "refused": REFUSED,
}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
STEPS = 9
PLACES: tuple[TableName, ...] = ("outputs", "rejected", "dead_letter")


@dataclass
class World:
    """A job in the hands of chance.

    `told` has what each prompt was told so far, and on which day: at temperature 0 equal prompts
    are one request, whichever row or day asks.
    """

    made: Lineage
    dice: random.Random
    rows: dict[str, list[dict[str, Any]]]
    told: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def another_source(self, day: str) -> None:
        """Rows come, go and change; some twice, some with an id that another row has."""
        self.rows[day] = some_rows(self.dice, day)
        rows = [row for of_day in self.rows.values() for row in of_day]
        write_table(self.made.deployment.root / "rows", rows)
        self.made.prepare(day)

    def some_answers(self, day: str) -> None:
        """A worker answers some of what is left, and is killed."""
        left = sorted(self.left(day).items())
        some = self.dice.sample(left, self.dice.randint(-(-len(left) // 2), len(left)))
        self.commit(day, dict(some), attempt=1)

    def lost_answers(self, day: str) -> None:
        """A worker is killed between writing a file and committing it."""
        left = list(self.left(day))
        folder = Path(self.made.tables.uri("inference")) / f"partition_key={day}"
        if left and folder.is_dir():
            lost = {**OUTCOMES["ok"], "attempt": 1, "finished_at": datetime.now(UTC)}
            rows = pl.DataFrame([{**lost, "request_hash": request_hash} for request_hash in left])
            rows.write_parquet(folder / f"part-lost-{self.dice.random()}.parquet")

    def half_of_outputs(self, day: str) -> None:
        """Stage 5 is killed between its two tables."""
        self.made.tables.replace("dead_letter", day, self.made.tables.read("dead_letter").clear())

    def second_attempts(self, day: str) -> bool:
        """The next round of retries, answered in part; whether there was one."""
        model = self.made.deployment.model(MODEL)
        again = plan_retries(self.made.job, model, self.made.tables, day)
        if again is None:
            return False
        texts = self.texts(day)
        hashes = self.made.tables.read("retries", day)["request_hash"]
        asked = {one: texts[one] for one in hashes if self.dice.random() < 0.7}
        assert not [text for text in asked.values() if "ok" in self.counts(text, day)]
        self.commit(day, asked, again.attempt)
        return True

    def another_chance(self, day: str) -> None:
        """Somebody queues some dead letters again."""
        letters = dead_letters(self.made.tables, day)
        requeue(self.made.tables, letters.sample(fraction=self.dice.random(), seed=0))

    def commit(self, day: str, asked: dict[str, str], attempt: int) -> None:
        """Results by chance, a few a commit; the clock of each worker is another one."""
        hashes = list(asked)
        while hashes:
            size = self.dice.randint(1, 3)
            chunk, hashes = hashes[:size], hashes[size:]
            at = datetime(2026, 11, self.dice.randint(1, 28), tzinfo=UTC)
            outcomes = self.dice.choices(list(OUTCOMES), k=len(chunk))
            for one, outcome in zip(chunk, outcomes, strict=True):
                self.told.setdefault(asked[one], []).append((day, outcome))
            common = {"partition_key": day, "attempt": attempt}
            rows = [
                {**OUTCOMES[told], **common, "request_hash": one, "finished_at": at}
                for one, told in zip(chunk, outcomes, strict=True)
            ]
            self.made.tables.appender("inference", day).append(rows)

    def texts(self, day: str) -> dict[str, str]:
        """request_hash → its prompt, of the rows that can run."""
        text_of = {row["id"]: row["text"] for row in self.rows[day]}
        mapped = self.made.tables.read("request_map", day, ["custom_id", "request_hash"])
        return {request_hash: text_of[name] for name, request_hash in mapped.iter_rows()}

    def counts(self, text: str, day: str) -> set[str]:
        """What a prompt was told that counts on this day: another day's bad hour does not."""
        return {what for when, what in self.told.get(text, []) if when == day or what != "late"}

    def left(self, day: str) -> dict[str, str]:
        """request_hash → its prompt, of what has no result."""
        return {one: text for one, text in self.texts(day).items() if not self.counts(text, day)}

    def expected(self, day: str) -> dict[str, set[str]]:
        """Table → the custom_ids that must be in it; those without a result in `missing`."""
        places: dict[str, set[str]] = {name: set() for name in (*PLACES, "missing")}
        for row in self.rows[day]:
            texts = {other["text"] for other in self.rows[day] if other["id"] == row["id"]}
            if None in texts or len(texts) > 1:
                place = "rejected"
            elif told := self.counts(row["text"], day):
                place = "outputs" if "ok" in told else "dead_letter"
            else:
                place = "missing"
            places[place].add(row["id"])
        return places

    def check(self, day: str) -> None:
        """Reconcile, and compare with the bookkeeping."""
        expected = self.expected(day)
        if missing := len(expected["missing"]):
            with pytest.raises(IncompleteError, match=rf"^{missing} of \d+ requests"):
                self.made.reconcile(day)
            return
        found = self.made.reconcile(day).ledger
        assert found == ledger(self.made.tables, day)
        assert found.balanced
        assert found.input_rows == len(self.rows[day])
        for name in PLACES:
            assert set(self.made.tables.read(name, day)["custom_id"]) == expected[name]


def some_rows(dice: random.Random, day: str) -> list[dict[str, Any]]:
    """Rows of a day; several may ask the same."""
    texts = [*dice.sample(TEXTS, 3), *dice.choices([*TEXTS, None], k=5)]
    rows = [{"id": f"{day}-{n}", "day": day, "text": text} for n, text in enumerate(texts)]
    twice = dice.sample(rows[:3], 2)
    return [*rows, twice[0], {**twice[1], "text": dice.choice(TEXTS)}]


@pytest.fixture
def world(deployment: Deployment, declare: Declare) -> Callable[[int], World]:
    """A world by its seed."""

    def make(seed: int) -> World:
        dice = random.Random(seed)
        rows = {day: some_rows(dice, day) for day in DAYS}
        made = lineage(
            deployment,
            declare,
            [row for day in DAYS for row in rows[day]],
            prompt="Count {{ text }}",
            answer_schema=SCHEMA,
            retries={"truncated": {"max_tokens": 512}},
        )
        for day in DAYS:
            made.prepare(day)
        return World(made, dice, rows)

    return make


@pytest.mark.parametrize("seed", range(2))
def test_every_row_is_in_one_place_after_every_step(
    world: Callable[[int], World], seed: int
) -> None:
    """Failures, duplicates, crashes, new sources, retries and re-queues, in any order."""
    made = world(seed)
    steps = {
        made.some_answers: 5,
        made.second_attempts: 3,
        made.another_chance: 2,
        made.lost_answers: 1,
        made.half_of_outputs: 1,
        made.another_source: 1,
    }
    for _ in range(STEPS):
        (step,) = made.dice.choices(list(steps), list(steps.values()))
        day = made.dice.choice(DAYS)
        step(day)
        made.check(day)
    for day in DAYS:  # and once all is answered, nothing waits
        made.commit(day, made.left(day), attempt=1)
        made.check(day)
        requeue(made.made.tables, dead_letters(made.made.tables, day))
        while made.second_attempts(day):
            pass
        made.check(day)
        assert not made.expected(day)["missing"]
