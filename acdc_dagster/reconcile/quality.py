"""Whether a partition's answers look as they should, and as they did before."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from acdc_dagster.job import Job
from acdc_dagster.reconcile.drift import answer_drift, length_drift
from acdc_dagster.reconcile.evaluation import Evaluation
from acdc_dagster.tables import Tables

# Words that an answer must have before it can count as repeating itself, and the share of them
# that is different in one that does not.
_WORDS, _DIFFERENT = 20, 0.2
# How many partitions before this one are looked at for a good one.
_BACK = 7


@dataclass(frozen=True)
class Finding:
    """One check of a partition.

    Attributes:
        name: The check, as the job declares its limit.
        value: What was found, a share or distance from 0 to 1.
        limit: What the job allows.
        told: The finding in words.
    """

    name: str
    value: float
    limit: float
    told: str

    @property
    def passed(self) -> bool:
        """Whether the limit is kept."""
        return self.value <= self.limit


def checked(job: Job) -> list[str]:
    """The checks that a job has: those with a limit that its answers can be held to."""
    limits = job.declared.checks.model_dump()
    if job.answer_schema is None:
        limits["parse"] = None
    if not job.evaluation:
        limits["evaluation"] = None
    if not any(column.few_values for column in job.answer_columns):
        limits["answer_drift"] = None
    return [name for name, limit in limits.items() if limit is not None]


def findings(
    job: Job, tables: Tables, partition: str, evaluation: Evaluation | None = None
) -> list[Finding]:
    """What the job's checks find in `outputs` and `dead_letter`, in the order of `checked`.

    Rates are shares of the ids in both tables. Drift is measured against the newest partition
    before this one, by its key, that kept the limits of the rates; the evaluation set's score
    against the last run that kept its limit.

    Raises:
        TableError: The storage refused.
    """
    rates = _Rates(job, tables, partition)
    drifts: dict[str, Callable[[str], float]] = {
        "length_drift": lambda before: length_drift(tables, before, partition),
        "answer_drift": lambda before: answer_drift(job, tables, before, partition),
    }
    names = checked(job)
    before = _last_good(job, tables, partition) if drifts.keys() & set(names) else None
    limits = job.declared.checks.model_dump()
    found: list[Finding] = []
    for name in names:
        if name in drifts:
            value = 0.0 if before is None else drifts[name](before)
            told = "no partition before" if before is None else f"against partition {before}"
        elif name == "evaluation":
            value, told = (0.0, "") if evaluation is None else (evaluation.drop, str(evaluation))
        else:
            value, told = rates.share(name), f"{rates.count(name)} of {rates.total}"
        found.append(Finding(name, value, limits[name], told))
    return found


class _Rates:
    """How many requests of a partition failed, and how."""

    def __init__(self, job: Job, tables: Tables, partition: str) -> None:
        answers = tables.scan("outputs", partition)
        classes = pl.concat(
            [
                answers.select("error_class"),
                tables.scan("dead_letter", partition).select("error_class"),
            ]
        )
        counted = tables.collect(classes.group_by("error_class").agg(pl.len()))
        self._classes: dict[str | None, int] = dict(counted.iter_rows())
        self.total = sum(self._classes.values())
        odd = answers.select(degenerate(job).sum()) if self.total else None
        self._degenerate = 0 if odd is None else int(tables.collect(odd).item() or 0)

    def count(self, name: str) -> int:
        """Ids of the failure class, with any failure, or with a degenerate answer."""
        if name == "failures":
            return self.total - self._classes.get(None, 0)
        return self._degenerate if name == "degenerate" else self._classes.get(name, 0)

    def share(self, name: str) -> float:
        """The same as a share of all ids."""
        return self.count(name) / self.total if self.total else 0.0


def degenerate(job: Job) -> pl.Expr:
    """Whether an answer of `outputs` says nothing: empty, or a few words over and over.

    By a schema, an answer is empty if it has properties of text and all of them are.
    """
    texts = [column.name for column in job.answer_columns if column.kind == "string"]
    if job.answer_schema is not None:
        blank = [pl.col(name).fill_null("").str.strip_chars() == "" for name in texts]
        return pl.all_horizontal(blank) if blank else pl.lit(False)
    words = pl.col("text").fill_null("").str.extract_all(r"\S+").list
    repeats = (words.len() >= _WORDS) & (words.n_unique() < _DIFFERENT * words.len())
    return (words.len() == 0) | repeats


def _last_good(job: Job, tables: Tables, partition: str) -> str | None:
    """The newest partition before this one whose rates keep the job's limits."""
    limits = job.declared.checks.model_dump()
    for before in _before(tables, partition):
        rates = _Rates(job, tables, before)
        names = ("failures", "truncated", "parse", "degenerate")
        bounds = {name: math.inf if limits[name] is None else limits[name] for name in names}
        if rates.total and all(rates.share(name) <= bounds[name] for name in names):
            return before
    return None


def _before(tables: Tables, partition: str) -> Iterator[str]:
    keys = sorted(key for key in tables.partitions("outputs") if key < partition)
    yield from reversed(keys[-_BACK:])
