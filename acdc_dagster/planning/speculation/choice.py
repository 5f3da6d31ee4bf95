"""Whether to speculate: by goodput, and off where the gain is not sure to be one."""

from dataclasses import dataclass

import polars as pl

from acdc_dagster.planning.cost.makespan import EngineLimits
from acdc_dagster.planning.speculation.acceptance import Acceptance, assumed
from acdc_dagster.planning.speculation.drafter import Costs, Drafter
from acdc_dagster.planning.speculation.goodput import MOST, Running, gains
from acdc_dagster.speculation import Speculation

MARGIN = 0.05  # a smaller predicted gain is within the error of the prediction
# Of a head or a smaller model that was declared and not measured: published EAGLE-3 heads accept
# about so many of their tokens, given those before.
_USUAL_ACCEPTANCE = 0.7


@dataclass(frozen=True)
class Decision:
    """What was decided.

    Attributes:
        speculation: None: off.
        gain: Predicted goodput of the best drafts over none, less 1; 0 if none is better, or if
            nothing was reckoned.
        why: In a sentence.
    """

    speculation: Speculation | None
    gain: float
    why: str


def refused(sampling: pl.Series) -> int:
    """Of the requests, those that vLLM refuses when it speculates: with min_p or logit_bias.

    Args:
        sampling: As in `sorted_requests`: JSON, one a request.
    """
    distinct = sampling.value_counts(name="requests").lazy()
    text = pl.col(sampling.name)
    floor = text.str.json_path_match("$.min_p").cast(pl.Float64, strict=False).fill_null(0.0)
    biased = text.str.json_path_match("$.logit_bias").fill_null("{}") != "{}"
    counted = distinct.filter((floor > 0) | biased).select(pl.col("requests").sum())
    return int(counted.collect().item())


def decide(
    drafter: Drafter,
    costs: Costs,
    running: Running,
    acceptance: Acceptance | None,
    limits: EngineLimits,
    *,
    lockstep: bool = False,
    refusing: int = 0,
    margin: float = MARGIN,
) -> Decision:
    """Choose the length of drafts for a replica in the middle of its job, and for smaller batches.

    Acceptance alone does not decide: it is about the same for every batch, and the gain is not. A
    head or smaller model without a measurement is taken to accept 0.7; what a look-up finds depends
    on the job, so without one it stays off.

    Args:
        drafter: What drafts.
        costs: Of a step with it.
        running: The batch.
        acceptance: As measured for this model, drafter and prompt version.
        limits: Of the engine; a batch's drafts are verified within one step's tokens.
        lockstep: Whether replicas wait for one another (vLLM data parallelism), where drafts are
            as long for every batch size.
        refusing: See `refused`.
        margin: Least gain.
    """
    if refusing:
        return Decision(
            None,
            0.0,
            f"No speculation: {refusing:,} request(s) ask for min_p or logit_bias, which vLLM "
            "refuses when it speculates.",
        )
    if acceptance is None and drafter.shape is None:
        return Decision(
            None,
            0.0,
            f"No speculation: nothing was measured yet of what {drafter.method} would find in "
            "this job's texts.",
        )
    known = acceptance or assumed(_USUAL_ACCEPTANCE)
    room = int(limits.tokens // max(running.sequences, 1.0)) - 1
    found = gains(costs, running, known, max(min(MOST, room), 0))
    drafts = _best(found, margin)
    about = (
        f"with {drafter.method}, a batch of {running.sequences:,.0f} at {running.context:,.0f} "
        f"tokens of context, and acceptance as "
        f"{'measured' if known.measured else 'assumed'}"
    )
    gain = max(found) - 1
    if not drafts:
        return Decision(
            None,
            gain,
            f"No speculation: {about}, drafts would gain {gain:.1%}, less than the {margin:.0%} "
            "that a prediction is sure of.",
        )
    schedule = (
        []
        if lockstep or drafter.method == "suffix"
        else _schedule(costs, running, known, limits, drafts, margin)
    )
    most = max([drafts, *(tokens for *_, tokens in schedule)])
    return Decision(
        Speculation(method=drafter.method, tokens=most, model_path=drafter.path, schedule=schedule),
        found[drafts] - 1,
        f"Drafts of {drafts} tokens: {about}, they gain {found[drafts] - 1:.0%}.",
    )


def _best(found: list[float], margin: float) -> int:
    best = max(range(len(found)), key=lambda drafts: found[drafts])
    return best if found[best] > 1 + margin else 0


def _schedule(
    costs: Costs,
    running: Running,
    acceptance: Acceptance,
    limits: EngineLimits,
    drafts: int,
    margin: float,
) -> list[list[int]]:
    """Lengths for the smaller batches of a job's end, where no prompts are left; by powers of two.

    Each range takes what is best for its largest batch. Empty if all are as long as `drafts`.
    """
    full = int(running.sequences)
    smaller = [2**power for power in range(full.bit_length()) if 2**power < full]
    tiers = [
        (size, _best(gains(costs, Running(float(size), running.context), acceptance), margin))
        for size in smaller
    ]
    ranges: list[list[int]] = []
    first = 1
    for last, tokens in [*tiers, (max(limits.sequences, full), drafts)]:
        if ranges and ranges[-1][2] == tokens:
            first, *_ = ranges.pop()
        ranges.append([first, last, tokens])
        first = last + 1
    return ranges if len(ranges) > 1 else []
