"""Other GPUs and other numbers of them; and what to do where limits of time or cost are missed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from acdc_dagster.gpus import Pool
from acdc_dagster.planning.choice import Goal, PlanError, choose
from acdc_dagster.planning.cost.makespan import Prediction
from acdc_dagster.planning.why import duration

Search = Callable[[Sequence[Pool]], list[Prediction]]

_MOST_GPUS = 1024  # looked at for a deadline that fewer miss


@dataclass(frozen=True)
class Option:
    """The best plan for so many GPUs of one kind.

    Attributes:
        best: None if the model fits none of the layouts.
        met: Whether it is within the limits.
        lacking: Why there is no plan, or why it cannot be told whether the limits are met.
    """

    gpu: str
    gpus: int
    best: Prediction | None
    met: bool
    lacking: str | None = None


def options(search: Search, pools: Sequence[Pool], goal: Goal) -> list[Option]:
    """For each kind of GPU the best plan for each number of them that a layout takes.

    Args:
        search: The candidates on pools; raises PlanError if nothing fits.
        pools: One a kind of GPU, with the most that are looked at.
        goal: Limits of time and cost.
    """
    found: list[Option] = []
    for pool in pools:
        try:
            fit = sorted(search([pool]), key=lambda each: each.layout.gpus)
        except PlanError as error:
            found.append(Option(pool.name, pool.count, None, met=False, lacking=error.problem))
            continue
        found += [
            _option(pool.name, gpus, list(group), goal)
            for gpus, group in groupby(fit, key=lambda each: each.layout.gpus)
        ]
    return found


def _option(gpu: str, gpus: int, fit: list[Prediction], goal: Goal) -> Option:
    priced = all(each.cost is not None for each in fit)
    if goal.budget is not None and not priced:
        best = choose(fit, replace(goal, budget=None)).best
        return Option(gpu, gpus, best, met=False, lacking="the GPU has no price_hour")
    choice = choose(fit, goal)
    return Option(gpu, gpus, choice.best, choice.met)


def missed(found: Sequence[Prediction], search: Search, goal: Goal) -> list[str]:
    """What stands against limits that no candidate meets, and the nearest plan that meets them.

    Args:
        found: The candidates, none of which is within the limits.
        search: As in `options`.
        goal: The limits.
    """
    nearest = choose(found, goal).best
    return [
        "No layout meets the limits; the nearest, marked *, takes " + _against(nearest, goal) + ".",
        *_of_budget(found, goal),
        *_of_deadline(found, search, goal),
    ]


def _against(each: Prediction, goal: Goal) -> str:
    told = duration(each.seconds)
    if goal.deadline_seconds is not None:
        told += f" of {duration(goal.deadline_seconds)}"
    if goal.budget is not None and each.cost is not None:
        told += f" and costs {each.cost:.2f} of {goal.budget:.2f}"
    return told


def _of_budget(found: Sequence[Prediction], goal: Goal) -> Iterator[str]:
    if goal.budget is None:
        return
    cheapest = min(found, key=lambda each: each.cost or 0.0)
    cost = cheapest.cost or 0.0
    if cost > goal.budget:
        yield f"It costs {cost:.2f} at least, with {cheapest.layout} on {cheapest.pool}."
    elif goal.deadline_seconds is not None:
        within = choose(found, Goal(budget=goal.budget)).best
        yield (
            f"Within the budget it takes {duration(within.seconds)} at least, with "
            f"{within.layout} on {within.pool}."
        )


def _of_deadline(found: Sequence[Prediction], search: Search, goal: Goal) -> Iterator[str]:
    if goal.deadline_seconds is None:
        return
    fastest = min(found, key=lambda each: each.seconds)
    if fastest.seconds <= goal.deadline_seconds:
        in_time = choose(found, Goal(deadline_seconds=goal.deadline_seconds)).best
        if in_time.cost is not None:
            yield (
                f"In time it costs {in_time.cost:.2f} at least, with {in_time.layout} on "
                f"{in_time.pool}."
            )
        return
    pool = fastest.pool
    count = 2 ** pool.count.bit_length()
    while count <= _MOST_GPUS:
        choice = choose(search([replace(pool, count=count)]), replace(goal, budget=None))
        if choice.met:
            yield (
                f"With {choice.best.layout.gpus} {pool.name} it would be done in "
                f"{duration(choice.best.seconds)}, with {choice.best.layout}."
            )
            return
        count *= 2
    yield (
        f"No number of {pool.name} up to {_MOST_GPUS} is enough: starting alone takes "
        f"{duration(fastest.start_seconds)}, and the longest answer comes token by token."
    )
