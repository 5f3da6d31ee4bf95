"""Whether a partition's engines draft: as declared, else as decided by goodput."""

from pathlib import Path

import polars as pl

from acdc_dagster.models import Model, ModelDrafter
from acdc_dagster.planning.cost.makespan import Prediction
from acdc_dagster.planning.cost.workload import Workload
from acdc_dagster.planning.pins import Pins
from acdc_dagster.planning.shapes.model import ModelShape
from acdc_dagster.planning.speculation.acceptance import Acceptance, counted
from acdc_dagster.planning.speculation.choice import Decision, decide, refused
from acdc_dagster.planning.speculation.drafter import drafter_of, roofline
from acdc_dagster.planning.speculation.goodput import Running
from acdc_dagster.speculation import Method
from acdc_dagster.tables import Tables


def speculation_of(
    tables: Tables,
    partition: str,
    model: Model,
    pins: Pins,
    best: Prediction | None,
    shape: ModelShape | None,
    work: Workload,
) -> Decision:
    """What the engines of a partition that generates text are told.

    Args:
        tables: The job's tables.
        partition: The partition key.
        model: The job's model, with what was declared for it to draft with; else a look-up of
            n-grams is looked at.
        pins: Its `speculation` is taken as it is, but for requests that forbid any.
        best: The layout that was chosen; None if nothing could be predicted.
        shape: The model's; None if it is not known.
        work: What the partition asks.

    Raises:
        ModelError: What the model drafts with is not there, or is no model that is known.
        TableError: The storage refused.
    """
    pinned = pins.engine.speculation
    if "speculation" in pins.places and pinned is None:
        return Decision(None, 0.0, "No speculation: it is switched off.")
    refusing = refused(tables.read("sorted_requests", partition, ["sampling"])["sampling"])
    if pinned is not None and not refusing:
        return Decision(pinned, 0.0, f"Drafts of {pinned.tokens} tokens as declared.")
    if best is None or shape is None:
        return Decision(None, 0.0, "No speculation: nothing can be predicted of this model.")
    declared = model.drafter or ModelDrafter(method="ngram")
    drafter = drafter_of(declared.method, None if declared.path is None else Path(declared.path))
    return decide(
        drafter,
        roofline(shape, best.pool.gpu, best.layout, drafter),
        Running.of(work, best.sequences),
        measured_acceptance(tables, model, declared.method),
        best.limits,
        lockstep=best.layout.lockstep > 1,
        refusing=refusing,
    )


def measured_acceptance(tables: Tables, model: Model, method: Method) -> Acceptance | None:
    """What drafts were worth in earlier runs of the job; None if none drafted so."""
    history = tables.collect(
        tables.scan("history").filter(
            (pl.col("model_revision") == model.revision)
            & (pl.col("drafts") > 0)
            & (pl.col("settings").str.json_path_match("$.speculation.method") == method)
        )
    )
    accepted = history["accepted"].to_list()
    positions = max(map(len, accepted), default=0)
    return counted(
        int((history["completion_tokens"] - history["requests"]).sum()),
        int(history["drafts"].sum()),
        [sum(row[at] for row in accepted if at < len(row)) for at in range(positions)],
    )
