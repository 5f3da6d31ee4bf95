"""Goodput: tokens of answers that a replica gives in a second, with drafts of some length."""

from dataclasses import dataclass

from acdc_dagster.planning.cost.step import Batch
from acdc_dagster.planning.cost.workload import Workload
from acdc_dagster.planning.speculation.acceptance import Acceptance
from acdc_dagster.planning.speculation.drafter import Costs

MOST = 8  # tokens of a draft that are looked at


@dataclass(frozen=True)
class Running:
    """What a replica has in its batch.

    Attributes:
        sequences: Requests that generate.
        context: Mean tokens of each.
        prompts: Prompt tokens computed beside each generated token: as many as finish come anew.
        pairs: Pairs of tokens that attend to one another in those.
    """

    sequences: float
    context: float
    prompts: float = 0.0
    pairs: float = 0.0

    @staticmethod
    def of(job: Workload, sequences: float) -> "Running":
        """In the middle of a job, whose prompts and answers are computed side by side."""
        steps = max(job.decode_steps, 1.0)
        return Running(
            sequences, job.context, job.uncached_tokens / steps, job.prefill_pairs / steps
        )


def goodput(costs: Costs, running: Running, acceptance: Acceptance, drafts: int) -> float:
    """Generated tokens/s of a replica that drafts so many tokens for each sequence in a step.

    B y / t: the batch times the tokens of a step, over its time. The step verifies all drafted
    tokens, so it computes B (1 + drafted) of them, and reads the KV of each sequence once. That is
    why a longer context pays for drafts and a larger batch does not (Liu et al. 2024, TurboSpec).
    """
    batch, given = running.sequences, acceptance.tokens(drafts) if drafts else 1.0
    drafted = acceptance.drafted * drafts
    answered = batch * given
    step = Batch(
        tokens=batch * (1 + drafted) + answered * running.prompts,
        sequences=batch,
        context=running.context,
        pairs=answered * running.pairs,
        drafted=drafted,
    )
    seconds = costs.step(step)
    if drafts:
        seconds += costs.drafting(step, drafts)
    return answered / seconds


def gains(costs: Costs, running: Running, acceptance: Acceptance, most: int = MOST) -> list[float]:
    """Goodput with drafts of 0, 1, … `most` tokens, over that without drafts."""
    found = [goodput(costs, running, acceptance, drafts) for drafts in range(most + 1)]
    return [each / found[0] for each in found]
