"""What `acdc plan` found, as text and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.planning.choice import Choice
from acdc_dagster.planning.cost.makespan import Prediction
from acdc_dagster.planning.plan import Plan
from acdc_dagster.planning.what_if import Option
from acdc_dagster.planning.why import duration

_SHOWN = 10


@dataclass(frozen=True)
class Spread:
    """Quantiles of a count of tokens."""

    p50: int
    p95: int
    max: int
    sum: int

    @staticmethod
    def of(values: NDArray[np.int64]) -> "Spread":
        """Those of `values`, which are not empty."""
        p50, p95, most = (
            int(each) for each in np.quantile(values, (0.5, 0.95, 1.0), method="higher")
        )
        return Spread(p50, p95, most, int(values.sum()))

    def __str__(self) -> str:
        return f"p50 {self.p50:,}, p95 {self.p95:,}, max {self.max:,}, sum {self.sum:,}"


@dataclass(frozen=True)
class Forecast:
    """What a partition holds, what each layout would take for it, and which one is best.

    Attributes:
        prompts: Tokens of the prompts.
        answers: Expected tokens of the answers.
        answers_from: Where those come from.
        answers_cut: Share of the observed answers that ended at their cap; None: none observed.
        sharing: Share of prompt tokens that the request before has too, 0 to 1.
        hit_rate: Share of prompt tokens that whole KV blocks give back, 0 to 1.
        missed: What stands against the goal's limits; nothing if they are met.
        what_if: Other GPUs and numbers of them, if they were asked about.
        plan: How the partition would run.
    """

    job: str
    partition: str
    model: str
    requests: int
    prompts: Spread
    answers: Spread
    answers_from: str
    answers_cut: float | None
    sharing: float
    hit_rate: float
    choice: Choice
    missed: list[str]
    what_if: list[Option]
    plan: Plan

    def as_json(self) -> str:
        """One object; times in seconds, rates in tokens/s."""
        fields: dict[str, Any] = {
            name: value
            for name, value in vars(self).items()
            if name not in ("choice", "plan", "what_if")
        }
        fields |= {"prompts": asdict(self.prompts), "answers": asdict(self.answers)}
        best = self.choice.best
        fields |= {
            "best": candidate_fields(best),
            "limits_met": self.choice.met,
            "candidates": [candidate_fields(each) for each in self.choice.candidates],
            "why": self.plan.why,
            "plan": self.plan.model_dump(),
            "what_if": [_option_fields(each) for each in self.what_if],
        }
        return json.dumps(fields, ensure_ascii=False)

    def as_text(self) -> str:
        """Lines for a terminal."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        cut = "" if not self.answers_cut else f"; {self.answers_cut:.0%} were cut at max_tokens"
        yield f"{self.job}, partition {self.partition}, {self.model}: {self.requests:,} requests"
        yield f"prompt tokens     {self.prompts}"
        yield f"answer tokens     {self.answers}"
        yield f"                  from {self.answers_from}{cut}"
        yield f"sharing           {self.sharing:.1%}; {self.hit_rate:.1%} in whole KV blocks"
        yield ""
        yield from candidate_table(self.choice)
        yield ""
        yield from self.missed
        yield from self.plan.why
        if self.what_if:
            yield ""
            yield from _what_if_table(self.what_if)


def candidate_table(choice: Choice) -> Iterator[str]:
    """The fastest candidates as lines of text, the chosen one marked with an asterisk."""
    found, best = choice.candidates, choice.best
    shown = found[:_SHOWN]
    if best not in shown:
        shown = [*shown, best]
    priced = all(each.cost is not None for each in found)
    head = ["  layout", "pool", "at once", "prefill/s", "decode/s", "wait", "time", "GPU-h"]
    rows = [[*head, *(["cost"] if priced else []), "error", "source"]]
    for each in shown:
        row = [
            f"{'*' if each == best else ' '} {each.layout}",
            str(each.pool),
            f"{each.sequences:,}",
            f"{each.prefill_rate:,.0f}",
            f"{each.decode_rate:,.0f}",
            f"{each.imbalance - 1:.0%}",
            duration(each.seconds),
            f"{each.gpu_seconds / 3600:.2f}",
        ]
        rows.append(
            [*row, *([f"{each.cost:.2f}"] if priced else []), f"{each.error:.0%}", each.source]
        )
    yield from _aligned(rows)
    if len(found) > len(shown):
        yield f"  … and {len(found) - len(shown)} slower ones"


def _what_if_table(options: Sequence[Option]) -> Iterator[str]:
    """The best plan for each kind and number of GPUs, and why there is none."""
    rows = [["  GPUs", "layout", "time", "GPU-h", "cost", "error", "limits"]]
    for each in options:
        best, name = each.best, f"  {each.gpu}:{each.gpus}"
        if best is None:
            rows.append([name, "none fits", "", "", "", "", ""])
            continue
        rows.append(
            [
                name,
                str(best.layout),
                duration(best.seconds),
                f"{best.gpu_seconds / 3600:.2f}",
                "" if best.cost is None else f"{best.cost:.2f}",
                f"{best.error:.0%}",
                "met" if each.met else "not told" if each.lacking else "missed",
            ]
        )
    yield from _aligned(rows)
    yield from dict.fromkeys(each.lacking for each in options if each.best is None and each.lacking)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Two columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join([*left, *right])


def _option_fields(each: Option) -> dict[str, Any]:
    best = None if each.best is None else candidate_fields(each.best)
    return {
        "gpu": each.gpu,
        "gpus": each.gpus,
        "best": best,
        "limits_met": each.met,
        "lacking": each.lacking,
    }


def candidate_fields(each: Prediction) -> dict[str, Any]:
    """A candidate as JSON; times in seconds, rates in tokens/s."""
    return {
        "gpu": each.pool.name,
        "gpus": each.layout.gpus,
        **asdict(each.layout),
        "sequences": each.sequences,
        "max_num_batched_tokens": each.limits.tokens,
        "step_seconds": each.step_seconds,
        "prefill_tokens_per_second": each.prefill_rate,
        "decode_tokens_per_second": each.decode_rate,
        "imbalance": each.imbalance,
        "bound": each.bound,
        "start_seconds": each.start_seconds,
        "seconds": each.seconds,
        "gpu_seconds": each.gpu_seconds,
        "cost": each.cost,
        "source": each.source,
        "error": each.error,
        "measured_runs": each.measured,
    }
