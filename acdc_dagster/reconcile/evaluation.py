"""How a job answers its evaluation set: scored, and compared with the last good run."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import polars as pl
from msgspec import UNSET, structs

from acdc_dagster.errors import DeclarationError, IncompleteError
from acdc_dagster.evaluation_set import FILE, EvaluationItem
from acdc_dagster.imported import imported
from acdc_dagster.job import Job, version_of
from acdc_dagster.schemas import row_schema
from acdc_dagster.tables import Tables

# Failures that say nothing of how well a question is answered.
_OF_THE_ENGINE = ("transient", "capacity")


@dataclass(frozen=True)
class Evaluation:
    """How an evaluation set was answered.

    Attributes:
        items: Questions of the set.
        scored: Those of them that count; the others got no answer through no fault of theirs.
        score: Mean of their scores, 0 to 1; None if there are none.
        baseline: The score of the last good run with the same set; None if there was none.
        digest: Changes when the set does.
    """

    items: int
    scored: int
    score: float | None
    baseline: float | None
    digest: str

    @property
    def drop(self) -> float:
        """By how much the score is below that of the last good run; 0 if it is not."""
        if self.score is None or self.baseline is None:
            return 0.0
        return max(self.baseline - self.score, 0.0)

    def __str__(self) -> str:
        if self.score is None:
            return f"none of {self.items} items was answered"
        before = "no good run before" if self.baseline is None else f"{self.baseline:.3f} before"
        return f"score {self.score:.3f} of {self.scored} items, {before}"


def evaluate(job: Job, tables: Tables, partition: str) -> Evaluation | None:
    """Score the answers to the job's evaluation set, and fill them into `evaluation`.

    Returns:
        None if the job has no such set.

    Raises:
        DeclarationError: A scorer cannot be imported, fails, or gives no score from 0 to 1.
        IncompleteError: The set changed since its requests were made, or has no results.
        TableError: The storage refused; run the partition again.
    """
    if not job.evaluation:
        return None
    asked = tables.read("evaluation", partition, ["item", "request_hash"])
    items = {item.id: item for item in job.evaluation}
    results = tables.scan("inference", partition).select(
        "request_hash", "text", "error_class", answered=pl.lit(True)
    )
    found = tables.collect(
        asked.lazy()
        .join(results, on="request_hash", how="left")
        .unique("item", keep="any", maintain_order=True)
    )
    if set(found["item"]) != items.keys() or found["answered"].null_count():
        raise IncompleteError(
            f"The answers to {job.folder / FILE} are not there for partition {partition!r}: the "
            "file changed since its requests were made, or they have no results yet.",
            f"Materialise {job.name}/sorted_requests and what follows it for this partition.",
        )
    scores = [
        None
        if failure in _OF_THE_ENGINE
        else _score(job, items[name], None if failure is not None else text)
        for name, text, failure in found.select("item", "text", "error_class").iter_rows()
    ]
    found = found.with_columns(pl.Series("score", scores, dtype=pl.Float64))
    tables.replace("evaluation", partition, found.select(row_schema("evaluation").names()))
    mean = cast("float | None", found["score"].mean())
    digest = version_of(*(structs.asdict(item) for item in job.evaluation))
    return Evaluation(
        items=found.height,
        scored=found.height - found["score"].null_count(),
        score=mean,
        baseline=_last_good(tables, digest),
        digest=digest,
    )


def _last_good(tables: Tables, digest: str) -> float | None:
    """The score of the newest run with this set that kept the job's limit."""
    kept = pl.col("evaluation_kept") & (pl.col("evaluation_set") == digest)
    runs = tables.scan("runs").filter(kept).select("recorded_at", "evaluation_score")
    return tables.collect(runs.sort("recorded_at").tail(1))["evaluation_score"].first()  # pyright: ignore[reportReturnType]


def _score(job: Job, item: EvaluationItem, text: str | None) -> float:
    if text is None:
        return 0.0
    if item.scorer is not UNSET:
        return _own_score(job, item, item.scorer, text)
    if item.matches is not UNSET:
        return float(re.search(item.matches, text) is not None)
    if isinstance(item.expected, str):
        return float(text.strip() == item.expected.strip())
    expected = cast("dict[str, Any]", item.expected)
    try:
        answer: Any = json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(answer, dict):
        return 0.0
    given = cast("dict[str, Any]", answer)
    same = [name in given and given[name] == value for name, value in expected.items()]
    return sum(same) / len(same)


def _own_score(job: Job, item: EvaluationItem, scorer: str, text: str) -> float:
    where = f"{job.folder / FILE}: item {item.id!r}"
    function: Callable[[str, Any], Any] = imported(scorer, where, job.folder)
    try:
        score = float(function(text, item.expected))
    except Exception as error:  # the function is the user's and may raise anything
        raise DeclarationError(
            f"{where}: {scorer} failed: {type(error).__name__}: {error}", "Mend the scorer."
        ) from error
    if not 0 <= score <= 1:
        raise DeclarationError(
            f"{where}: {scorer} gave {score}.", "Have it return a score from 0 to 1."
        )
    return score
