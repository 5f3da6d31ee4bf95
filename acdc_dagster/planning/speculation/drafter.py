"""What drafts tokens, and what a step costs with it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from acdc_dagster.gpus import Gpu
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.step import Batch, Efficiency, step_time
from acdc_dagster.planning.shapes.model import ModelShape, read_shape
from acdc_dagster.speculation import Method

# Assumed, until runs are measured. Verifying: comparing, resampling, and moving what was refused.
_VERIFYING_SECONDS = 1e-3
# Launching a pass of a drafting model, which has few layers.
_PASS_SECONDS = 3e-4
# A look-up reads the sequence once, on the host.
_LOOKUP_SECONDS_A_TOKEN = 1e-9


@dataclass(frozen=True)
class Drafter:
    """What a model has to draft with.

    Attributes:
        path: Folder of the smaller model or the head; none for a look-up.
        shape: Of that model; none for a look-up.
    """

    method: Method
    path: str | None = None
    shape: ModelShape | None = None


def drafter_of(method: Method, folder: Path | None) -> Drafter:
    """What a declared method drafts with; `folder` holds the smaller model or the head.

    Raises:
        ModelError: Its config.json is missing, or does not describe a model that is known.
    """
    if folder is None:
        return Drafter(method)
    return Drafter(method, str(folder), read_shape(folder))


@dataclass(frozen=True)
class Costs:
    """Seconds of a replica's work.

    Attributes:
        step: Of a step that computes a batch.
        drafting: Of drafting for a batch, so many tokens for each sequence.
    """

    step: Callable[[Batch], float]
    drafting: Callable[[Batch, int], float]


def roofline(shape: ModelShape, gpu: Gpu, layout: Layout, drafter: Drafter) -> Costs:
    """Costs as the cost model has them; a drafting model is shared out as the model is.

    Args:
        shape: Of the model.
        gpu: What it runs on.
        layout: Of the model.
        drafter: What drafts.
    """
    quick = Efficiency(overhead=_PASS_SECONDS)

    def step(batch: Batch) -> float:
        return step_time(shape, gpu, layout, batch).total

    def drafting(batch: Batch, tokens: int) -> float:
        if drafter.shape is None:
            read = batch.sequences * batch.context
            return _VERIFYING_SECONDS + _LOOKUP_SECONDS_A_TOKEN * read
        split = Layout(layout.tensor)
        # The first pass takes in what the model has verified and the prompts; then one a token.
        first = step_time(drafter.shape, gpu, split, replace(batch, drafted=0.0), quick).total
        alone = Batch(batch.sequences, batch.sequences, batch.context)
        other = step_time(drafter.shape, gpu, split, alone, quick).total
        return _VERIFYING_SECONDS + first + (tokens - 1) * other

    return Costs(step, drafting)
