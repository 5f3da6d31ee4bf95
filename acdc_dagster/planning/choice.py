"""Choosing a layout: all that fit a pool, and the best of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from acdc_dagster.errors import AcdcError
from acdc_dagster.gpus import Pool
from acdc_dagster.planning.cost.layout import Fixed, layouts
from acdc_dagster.planning.cost.makespan import (
    EngineLimits,
    Prediction,
    Unfit,
    predict,
)
from acdc_dagster.planning.cost.memory import UTILISATION
from acdc_dagster.planning.cost.workload import Workload
from acdc_dagster.planning.shapes.model import ModelShape

# Predictions this near are taken as equal: the one with fewer GPU-seconds is chosen.
TIE = 0.02
_MOST_GPUS = 4096  # looked for when a model fits none of the pools


class PlanError(AcdcError):
    """No layout of the given GPUs can run the job."""


@dataclass(frozen=True)
class Goal:
    """What the user wants: the fastest, or what these limits say.

    Attributes:
        deadline_seconds: The cheapest of the layouts that are done by then.
        budget: The fastest of the layouts that cost no more, in the currency of the prices.
    """

    deadline_seconds: float | None = None
    budget: float | None = None


@dataclass(frozen=True)
class Choice:
    """All layouts that fit, the fastest first, and the one that was chosen.

    Attributes:
        met: Whether the chosen one meets the goal's limits; if not it is the nearest to them.
    """

    candidates: list[Prediction]
    best: Prediction
    met: bool


def candidates(
    shape: ModelShape,
    pools: Sequence[Pool],
    job: Workload,
    limits: EngineLimits | None = None,
    fixed: Fixed | None = None,
) -> list[Prediction]:
    """Predictions of all layouts that fit, the fastest first.

    Raises:
        PlanError: None fits; it names what is lacking and the fewest GPUs that would do. Or the
            fixed degrees leave none.
    """
    found: list[Prediction] = []
    lacking: list[Unfit] = []
    for pool in pools:
        fit, unfit = fitting(shape, pool, job, limits, fixed)
        found += fit
        lacking += unfit
    if not found and not lacking:
        raise _nothing_allowed(pools, fixed or Fixed())
    if not found:
        raise _fits_nowhere(shape, pools, job, limits, fixed, lacking)
    return sorted(found, key=lambda each: (each.seconds, each.gpu_seconds))


def choose(found: Sequence[Prediction], goal: Goal | None = None) -> Choice:
    """The best of `found`, which is not empty.

    Without limits the fastest, or one within 2 % of it that takes fewer GPU-seconds; but if the
    fastest was never run, the fastest of those that were and are within its error of it. With a
    deadline the cheapest that meets it; with a budget the fastest within it; with both the cheapest
    within both. Cost is GPU-seconds where prices are not given. If nothing meets the limits, it is
    the layout that misses them least.

    Raises:
        PlanError: There is a budget, and a GPU has no price.
    """
    goal = goal or Goal()
    if goal.budget is not None and any(each.cost is None for each in found):
        raise PlanError(
            "A budget needs prices, and a GPU has none.",
            "Give price_hour of each GPU under gpus: of resources/<env>.yaml.",
        )
    deadline = math.inf if goal.deadline_seconds is None else goal.deadline_seconds
    budget = math.inf if goal.budget is None else goal.budget
    cost = _cost_of(found)
    able = [each for each in found if each.seconds <= deadline and (each.cost or 0) <= budget]
    if not able:
        nearest = min(
            found, key=lambda each: max(each.seconds / deadline, (each.cost or 0) / budget)
        )
        return Choice(list(found), nearest, met=False)
    if goal.deadline_seconds is not None:
        best = min(able, key=lambda each: (cost(each), each.seconds))
    else:
        best = _fastest(able, cost)
    return Choice(list(found), best, met=True)


def _fastest(able: Sequence[Prediction], cost: Callable[[Prediction], float]) -> Prediction:
    """The fastest as far as can be told: what was measured before what is only predicted."""
    first = min(able, key=lambda each: each.seconds)
    tried = [
        each for each in able if each.measured and each.seconds <= first.seconds * (1 + first.error)
    ]
    if tried and not first.measured:
        first, able = min(tried, key=lambda each: each.seconds), tried
    equal = [each for each in able if each.seconds <= first.seconds * (1 + TIE)]
    return min(equal, key=lambda each: (cost(each), each.seconds))


def _cost_of(found: Sequence[Prediction]) -> Callable[[Prediction], float]:
    if any(each.cost is None for each in found):
        return lambda each: each.gpu_seconds
    return lambda each: each.cost or 0.0


def fitting(
    shape: ModelShape,
    pool: Pool,
    job: Workload,
    limits: EngineLimits | None,
    fixed: Fixed | None = None,
) -> tuple[list[Prediction], list[Unfit]]:
    """Layouts of a pool that fit and that do not; with pipeline stages only if no other fits."""
    fit: list[Prediction] = []
    unfit: list[Unfit] = []
    for stages in range(1, max(pool.count // pool.gpu.per_node, 1) + 1):
        for layout in layouts(shape, pool, stages, fixed):
            predicted = predict(shape, pool, layout, job, limits)
            if isinstance(predicted, Unfit):
                unfit.append(predicted)
            else:
                fit.append(predicted)
        if fit:
            break
    return fit, unfit


def _fits_nowhere(
    shape: ModelShape,
    pools: Sequence[Pool],
    job: Workload,
    limits: EngineLimits | None,
    fixed: Fixed | None,
    lacking: Sequence[Unfit],
) -> PlanError:
    names = ", ".join(map(str, pools))
    near = min(lacking, key=lambda each: each.needed - each.pool.gpu.memory * UTILISATION)
    enough = (
        str(larger)
        for larger in (
            Pool(near.pool.name, near.pool.gpu, 2**power)
            for power in range(_MOST_GPUS.bit_length())
        )
        if larger.count > near.pool.count and fitting(shape, larger, job, limits, fixed)[0]
    )
    feasible = next(enough, None)
    usable = near.pool.gpu.memory * UTILISATION - 1e9 * near.pool.gpu.other_gb
    return PlanError(
        f"The model fits no layout of {names}: {near.layout} needs {near.needed / 1e9:.1f} GB a "
        f"GPU for its weights and the longest request ({job.longest:,} tokens), and has "
        f"{usable / 1e9:.1f} GB of {near.pool.gpu.memory_gb:g} GB to use.",
        f"It would fit {feasible}; or take a GPU with more memory, or quantised weights."
        if feasible
        else "Take a GPU with more memory, quantised weights, or a smaller max_tokens.",
    )


def _nothing_allowed(pools: Sequence[Pool], fixed: Fixed) -> PlanError:
    given = {
        "tensor_parallel": fixed.tensor,
        "expert_parallel": fixed.expert,
        "replicas": fixed.data,
    }
    told = ", ".join(f"{name}: {value}" for name, value in given.items() if value is not None)
    return PlanError(
        f"No layout of {', '.join(map(str, pools))} has what is pinned: {told or 'nothing'}.",
        "The heads of the model and the GPUs of a node must be divisible by tensor_parallel, and "
        "replicas x tensor_parallel be no more than the GPUs. Leave one of them out, and it is "
        "planned.",
    )
