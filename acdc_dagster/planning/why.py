"""The reasons for a choice, in words: what wins, by how much, and what would change it."""

from collections.abc import Callable
from dataclasses import replace

from acdc_dagster.planning.choice import TIE, Choice, PlanError, choose
from acdc_dagster.planning.cost.makespan import BOUNDS, Prediction
from acdc_dagster.planning.cost.workload import Workload
from acdc_dagster.planning.shapes.model import ModelShape

# Layouts nearer than this are not told apart; see docs/planning.md.
_DOUBTFUL = 5 * TIE


def reasons(
    choice: Choice,
    shape: ModelShape,
    job: Workload,
    search: Callable[[Workload], list[Prediction]],
) -> list[str]:
    """Why the chosen layout wins, by how much, and what would change it, in sentences.

    Args:
        choice: What was chosen.
        shape: The model.
        job: What it was chosen for.
        search: The candidates for another job, of which there is at least one or it raises
            PlanError.
    """
    best = choice.best
    said = [
        f"{best.layout} on {best.pool} is done in {duration(best.seconds)}, of which "
        f"{duration(best.start_seconds)} to start; most of a step goes into {BOUNDS[best.bound]}.",
        _known_from(best),
    ]
    if best.seconds < 2 * best.start_seconds:
        said.append(
            "Starting takes longer than running: the job is too small to repay a choice between "
            "layouts, or a change on the way."
        )
    faster = choice.candidates[0]
    if best.measured and not faster.measured and faster.seconds < best.seconds:
        said.append(
            f"{_named(faster, best)} was never run; it is predicted to take "
            f"{duration(faster.seconds)}, and that difference is within its error of "
            f"{faster.error:.0%}, so what was measured is taken."
        )
    others = [each for each in choice.candidates if _how(each) != _how(best)]
    if others:
        other = choose(others).best
        change = other.seconds / best.seconds - 1
        said.append(
            f"The next, {_named(other, best)}, takes {duration(other.seconds)} "
            f"({change:+.0%}) and {other.gpu_seconds / best.gpu_seconds - 1:+.0%} GPU-seconds"
            + (
                "; that is within what can be told, so measure both if it matters."
                if abs(change) <= _DOUBTFUL
                else "."
            )
        )
    heads = shape.attention.kv_heads
    beyond = any(each.layout.tensor > heads for each in choice.candidates)
    if beyond and not shape.attention.latent:
        said.append(
            f"Beyond T{heads} the model's {heads} KV heads would be kept on several GPUs each."
        )
    for what, changed in _what_if(job):
        again = _best(search, changed)
        if again is None:
            said.append(f"With {what} nothing fits.")
        elif _how(again) != _how(best):
            said.append(f"With {what} {_named(again, best)} would be the fastest.")
    return said


def duration(seconds: float) -> str:
    """Seconds as a reader takes them in: 42 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _known_from(best: Prediction) -> str:
    """Where the figures of the winner come from, and how far they can be off."""
    source = {
        "history": f"{best.measured} measured run(s) of this configuration",
        "roofline x history": "the roofline, corrected by runs of other configurations",
    }.get(best.source, "the roofline alone: nothing was measured")
    return f"The time is from {source}; it may be off by about {best.error:.0%}."


def _how(each: Prediction) -> tuple[object, ...]:
    """What makes two plans different in kind: not the number of replicas."""
    layout = each.layout
    return each.pool.name, layout.tensor, layout.expert, layout.pipeline, each.limits


def _named(each: Prediction, best: Prediction) -> str:
    """A candidate by its layout and pool, and by its limits if they are not the winner's."""
    limits = each.limits
    told = f" with {limits.sequences} requests and {limits.tokens:,} tokens at once"
    return f"{each.layout} on {each.pool}{told if limits != best.limits else ''}"


def _best(search: Callable[[Workload], list[Prediction]], job: Workload) -> Prediction | None:
    try:
        return choose(search(job)).best
    except PlanError:
        return None


def _what_if(job: Workload) -> list[tuple[str, Workload]]:
    """The job with other answers and without a prefix cache."""
    longer, shorter = (_answers_times(job, factor) for factor in (4.0, 0.25))
    uncached = replace(
        job,
        uncached_tokens=job.prompt_tokens,
        prefill_pairs=job.prompt_pairs,
        own=job.context,
        mean_lcp=0.0,
    )
    asked = [("answers four times as long", longer), ("answers a quarter as long", shorter)]
    return [*asked, ("no prefix shared", uncached)] if job.hit_rate > 0.05 else asked


def _answers_times(job: Workload, factor: float) -> Workload:
    """The job with each answer so many times as long."""
    answers = job.longest_answer
    mean = (job.decode_steps + job.requests) / max(job.requests, 1)
    more = (factor - 1) * mean / 2
    return replace(
        job,
        decode_steps=max(job.decode_steps + (factor - 1) * mean * job.requests, 0.0),
        context=max(job.context + more, 1.0),
        own=max(job.own + more, 1.0),
        longest=max(job.longest + int((factor - 1) * answers), 1),
        longest_answer=max(int(factor * answers), 1),
    )
