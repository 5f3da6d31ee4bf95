"""The record of a run: what was run, and its four health numbers."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import polars as pl

from acdc_dagster.job import Job, version_of
from acdc_dagster.planning.stage import read_plan
from acdc_dagster.reconcile.costs import RunCosts
from acdc_dagster.reconcile.evaluation import Evaluation
from acdc_dagster.reconcile.stage import OutputStats
from acdc_dagster.tables import Tables


@dataclass(frozen=True)
class Health:
    """How a run went.

    Attributes:
        computed: Results that this run computed.
        seconds: The longest time that an engine of it was up.
        items_per_minute: Results a minute of that time; None if nothing was computed.
        failure_rate: Share of the partition's ids with a failure, 0 to 1.
        retry_rate: Share of its requests that were asked more than once, 0 to 1.
        mean_context: Mean tokens of prompt and answer of an id; None if there is no answer.
        latency_p99: Seconds that 99 % of this run's requests took at most in the engine.
        cost: Of this run; None if the deployment has no `device_hour` or nothing was computed.
    """

    computed: int
    seconds: float
    items_per_minute: float | None
    failure_rate: float
    retry_rate: float
    mean_context: float | None
    latency_p99: float | None
    cost: float | None


def record_run(
    job: Job,
    tables: Tables,
    partition: str,
    run_id: str,
    costs: RunCosts,
    stats: OutputStats,
    evaluation: Evaluation | None = None,
) -> Health:
    """Add the run to `runs`, once, with all that it was run with.

    Args:
        job: The job.
        tables: Its tables.
        partition: The partition key.
        run_id: Of the run that reconciled, and computed unless all was there.
        costs: Of the job's runs.
        stats: What stage 5 did.
        evaluation: How the evaluation set was answered.

    Raises:
        TableError: The storage refused.
    """
    health = _health(tables, partition, run_id, costs, stats)
    plan = read_plan(tables, partition)
    engines = tables.collect(
        tables.scan("history", partition).filter(run_id=run_id).select("engine", "device").unique()
    )
    balance = stats.ledger
    row: dict[str, object] = {
        "partition_key": partition,
        "run_id": run_id,
        "recorded_at": datetime.now(UTC),
        "code_version": version("acdc-dagster"),
        "declaration": job.declared.model_dump_json(),
        "prompt_version": job.prompt_version,
        "prompt_hash": version_of(job.prompt),
        "model": plan.model,
        "model_revision": plan.model_revision,
        "plan": plan.model_dump_json(),
        "engine": ", ".join(engines["engine"].unique().sort()) or None,
        "device": ", ".join(engines["device"].drop_nulls().unique().sort()) or None,
        "input_rows": balance.input_rows,
        "outputs": balance.outputs,
        "rejected": balance.rejected,
        "dead_letter": balance.dead_letter,
        "failures": json.dumps(stats.failures),
        "currency": costs.prices.currency,
        **vars(health),
    }
    if evaluation is not None and evaluation.score is not None:
        limit = job.declared.checks.evaluation
        row |= {
            "evaluation_score": evaluation.score,
            "evaluation_set": evaluation.digest,
            "evaluation_kept": limit is None or evaluation.drop <= limit,
        }
    appender = tables.appender("runs", f"run/{partition}/{run_id}")
    if appender.next_chunk == 0:
        appender.append([row])
    return health


def _health(
    tables: Tables, partition: str, run_id: str, costs: RunCosts, stats: OutputStats
) -> Health:
    results = tables.scan("inference", partition).filter(pl.col("run_id") == run_id)
    took = (pl.col("finished_at") - pl.col("started_at")).dt.total_microseconds() / 1e6
    computed, latency = tables.collect(
        results.select(pl.len(), took.quantile(0.99, "higher").alias("p99"))
    ).row(0)
    of_run = tables.scan("history", partition).filter(pl.col("run_id") == run_id)
    seconds = float(tables.collect(of_run.select(pl.col("seconds").max())).item() or 0.0)
    tokens = pl.col("prompt_tokens") + pl.col("completion_tokens")
    context = tables.collect(tables.scan("outputs", partition).select(tokens.mean())).item()
    ids = stats.outputs + stats.dead_letter
    return Health(
        computed=computed,
        seconds=seconds,
        items_per_minute=60 * computed / seconds if seconds else None,
        failure_rate=sum(stats.failures.values()) / ids if ids else 0.0,
        retry_rate=stats.retried / stats.requests if stats.requests else 0.0,
        mean_context=context,
        latency_p99=latency,
        cost=costs.total(partition, run_id),
    )
