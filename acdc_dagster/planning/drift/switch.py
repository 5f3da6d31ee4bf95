"""Whether another plan for what is left of a job wins back what changing to it costs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.planning.cost.makespan import Prediction
from acdc_dagster.planning.cost.workload import Workload
from acdc_dagster.planning.why import duration


@dataclass(frozen=True)
class Switch:
    """The four numbers, in seconds, and what follows from them.

    Attributes:
        gain: What is left takes so much less under the other plan, both without starting.
        drain: Lost while the last requests of the old replicas end and no new ones begin.
        start: Until the new replicas give their first token.
        lost_cache: Prefixes that the new replicas compute once more.
    """

    gain: float
    drain: float
    start: float
    lost_cache: float

    @property
    def cost(self) -> float:
        """Seconds that changing takes."""
        return self.drain + self.start + self.lost_cache

    @property
    def worth(self) -> bool:
        """Whether it wins back what it costs."""
        return self.gain > self.cost

    def __str__(self) -> str:
        verb = "pays" if self.worth else "does not pay"
        return (
            f"changing {verb}: it would save {duration(max(self.gain, 0))} and cost "
            f"{duration(self.cost)} ({duration(self.drain)} to drain, {duration(self.start)} to "
            f"start, {duration(self.lost_cache)} for prefixes computed again)"
        )


def weigh(old: Prediction, new: Prediction, left: Workload, answers: NDArray[np.int64]) -> Switch:
    """What changing from one plan to another would gain and cost.

    Args:
        old: For what is left, by the plan that runs.
        new: For what is left, by the other.
        left: What is left, in prefix order.
        answers: int64[N], expected tokens of its answers.
    """
    steps = drain_steps(answers, old.sequences)
    # Each new replica computes the prefix at which it begins, all of them side by side.
    rate = new.prefill_rate / new.layout.data
    return Switch(
        gain=(old.seconds - old.start_seconds) - (new.seconds - new.start_seconds),
        drain=steps * old.step_seconds,
        start=new.start_seconds,
        lost_cache=left.mean_lcp / rate if rate else 0.0,
    )


def drain_steps(answers: NDArray[np.int64], running: float) -> float:
    """Steps lost while a batch of `running` requests ends without new ones.

    At a random moment a running request still has r tokens to go with chance
    P(r > x) = sum max(d - x, 0) / sum d over the answers d: longer ones are met more often (the
    residual life of a renewal process). The batch drains for about as long as the x that one of
    `running` exceeds, and works for the mean r = sum d^2 / (2 sum d) of it; the difference is lost.
    """
    ordered = np.sort(answers[answers > 0]).astype(np.float64)
    if not len(ordered) or running <= 1:
        return 0.0
    total = float(ordered.sum())
    # P(r > x) at x = each answer in turn: what the longer ones have beyond it.
    longer = np.arange(len(ordered) - 1, -1, -1)
    beyond = total - np.cumsum(ordered) - longer * ordered
    chance = np.append(1.0, beyond / total)
    lengths = np.append(0.0, ordered)
    longest = float(np.interp(-1 / running, -chance, lengths))
    return max(longest - float((ordered**2).sum()) / (2 * total), 0.0)
