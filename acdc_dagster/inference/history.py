"""What one run of a worker measured, as a row of `history`: what later plans learn from."""

from datetime import UTC, datetime

from acdc_dagster.inference.events import Event
from acdc_dagster.inference.meter import Meter
from acdc_dagster.planning.plan import Plan

# Share of the requests that were put back for want of KV memory, from which on their prompts that
# were computed twice distort the rates.
_PREEMPTED = 0.01


def history_row(
    partition: str,
    run_id: str,
    plan: Plan,
    meter: Meter,
    engine: str,
    device: str,
    *,
    contended: bool = False,
) -> dict[str, object]:
    """The row.

    Args:
        partition: The partition key.
        run_id: Of whoever ordered the work.
        plan: What the worker ran.
        meter: What it counted.
        engine: Name and version of the engine.
        device: What the engine ran on.
        contended: Others took the processor meanwhile.
    """
    told = meter.event("finished")
    return {
        "partition_key": partition,
        "run_id": run_id,
        "shard": told.shard,
        "model": plan.model,
        "model_revision": plan.model_revision,
        "engine": engine,
        "device": device,
        "replicas": len(plan.shards),
        "settings": plan.engine.model_dump_json(),
        "requests": told.computed,
        "failed": told.failed,
        "prompt_tokens": told.prompt_tokens,
        "cached_tokens": told.cached_tokens,
        "completion_tokens": told.completion_tokens,
        "seconds": told.seconds,
        "batch_fill": told.batch_fill,
        "kv_usage": meter.most_kv_usage,
        "preemptions": told.preemptions,
        "drafts": told.drafts,
        "accepted": told.accepted,
        "restarts": told.restarts,
        "outlier": _outlier(told, contended=contended),
        "finished_at": datetime.now(UTC),
    }


def _outlier(told: Event, *, contended: bool) -> str | None:
    """Why the rates of a run say little of its configuration; None if they do."""
    if told.restarts:
        return "restarted"
    if told.preemptions > _PREEMPTED * max(told.computed, 1):
        return "preempted"
    return "contended" if contended else None
