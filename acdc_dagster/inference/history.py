"""What one run of a worker measured, as a row of `history`: what later plans learn from.

A worker writes its row when it ends. One that is killed writes none; its row is told from what it
had committed, by the next worker that is done with its shard.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import polars as pl

from acdc_dagster.errors import ShardTakenError
from acdc_dagster.inference.events import Event
from acdc_dagster.inference.meter import Meter
from acdc_dagster.planning.plan import Plan
from acdc_dagster.tables import Tables

Ended = Literal["complete", "stopped", "failed", "killed"]

_SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens")


def remember(tables: Tables, worker: str, row: dict[str, object]) -> None:
    """Add the row of a worker, once.

    Args:
        tables: The job's tables.
        worker: Its name, as its results have it.
        row: The row.

    Raises:
        TableError: The storage refused.
    """
    history = tables.appender("history", f"{row['run_id']}/{worker}")
    if history.next_chunk == 0:
        with suppress(ShardTakenError):  # another one has told it meanwhile
            history.append([row])


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
    ended: Ended,
    *,
    contended: bool = False,
) -> dict[str, object]:
    """The row of a worker that ends.

    Args:
        partition: The partition key.
        run_id: Of whoever ordered the work.
        plan: What the worker ran.
        meter: What it counted.
        engine: Name and version of the engine.
        device: What the engine ran on.
        ended: How.
        contended: Others took the processor meanwhile.
    """
    told = meter.event("finished")
    return {
        **_planned(partition, run_id, plan),
        "shard": told.shard,
        "engine": engine,
        "device": device,
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
        "ended": ended,
    }


def remember_killed(tables: Tables, partition: str, plan: Plan, shard: int) -> None:
    """Write the rows of the workers of a shard that ended without one.

    Their counts are those of the results that they committed, and `seconds` is the time from the
    start of the first of these requests to the end of the last: what a worker did after its last
    commit is not known, and one that was killed before its first leaves no trace. Device, batch
    fill and the like are null. The settings are those of the present plan.

    To be called when nothing of the shard is left: a worker of it that still lives, cut off, can
    commit no more then. Shards of an earlier plan with more of them are looked after as well.

    Args:
        tables: The job's tables.
        partition: The partition key.
        plan: The partition's plan.
        shard: Number of the shard.

    Raises:
        TableError: The storage refused.
    """
    took = pl.col("finished_at").max() - pl.col("started_at").min()
    workers = tables.collect(
        tables.scan("inference", partition)
        .filter(pl.col("shard") % len(plan.shards) == shard)
        .group_by("run_id", "worker", "shard", "engine")
        .agg(
            pl.len().alias("requests"),
            pl.col("error_class").count().alias("failed"),
            *(pl.col(name).cast(pl.Int64).sum() for name in _SUMS),
            (took.dt.total_microseconds() / 1e6).alias("seconds"),
            pl.col("finished_at").max(),
        )
    )
    for told in workers.iter_rows(named=True):
        worker = str(told.pop("worker"))
        row = {**_planned(partition, told["run_id"], plan), **told, "ended": "killed"}
        remember(tables, worker, row)


def _planned(partition: str, run_id: str, plan: Plan) -> dict[str, object]:
    return {
        "partition_key": partition,
        "run_id": run_id,
        "model": plan.model,
        "model_revision": plan.model_revision,
        "replicas": len(plan.shards),
        "settings": plan.engine.model_dump_json(),
    }


def _outlier(told: Event, *, contended: bool) -> str | None:
    """Why the rates of a run say little of its configuration; None if they do."""
    if told.restarts:
        return "restarted"
    if told.preemptions > _PREEMPTED * max(told.computed, 1):
        return "preempted"
    return "contended" if contended else None
