"""What each stage of a job does in a run, and what it tells Dagster of the tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import polars as pl

from acdc_dagster.backends.local import check_local, run_local
from acdc_dagster.backends.progress import Progress
from acdc_dagster.inference.events import Throttle
from acdc_dagster.job import Job, version_of
from acdc_dagster.lineage.checks import check_results
from acdc_dagster.lineage.console import PROGRESS
from acdc_dagster.lineage.metadata import (
    column_metadata,
    counts,
    evaluation_metadata,
    health_metadata,
    image_metadata,
    percent,
    plan_metadata,
    savings_metadata,
    spot_check_metadata,
    table_metadata,
    table_path,
)
from acdc_dagster.lineage.resources import DeploymentResource
from acdc_dagster.models import Model
from acdc_dagster.planning.plan import Plan
from acdc_dagster.planning.stage import profile, read_plan, read_retry_plan
from acdc_dagster.prefix.reuse import apart
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.prefix.tokens.cutter import TokenCutter
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.reconcile.answers import check_columns
from acdc_dagster.reconcile.costs import RunCosts, comparison
from acdc_dagster.reconcile.evaluation import evaluate
from acdc_dagster.reconcile.retry import plan_retries
from acdc_dagster.reconcile.run_record import record_run
from acdc_dagster.reconcile.spot_checks import spot_check
from acdc_dagster.reconcile.stage import reconcile
from acdc_dagster.requests.prompts.evaluation import evaluation_requests
from acdc_dagster.requests.stage import take_in
from acdc_dagster.schemas import TableName
from acdc_dagster.tables import Tables

Materialised = dg.MaterializeResult[Any]

# Each message is a row in Dagster's database: every five seconds at first, then every fiftieth of
# the time that has passed.
_TELL_SECONDS, _TELL_GROWTH = 5.0, 0.02


@dataclass(frozen=True)
class Stage:
    """One stage of one job in one run: what a stage's body works with."""

    job: Job
    context: dg.AssetExecutionContext
    resource: DeploymentResource
    tables: Tables
    partition: str

    def model(self) -> Model:
        """The job's model, seen to be there."""
        return self.resource.deployment.model(self.job.declared.model)


def materialise_raw_requests(stage: Stage) -> Materialised:
    """Stage 1: the source as requests."""
    # All that the later stages will need is looked at before anything is written.
    model = stage.model()
    check_local()
    check_columns(stage.job, stage.tables)
    cutter = TokenCutter(lambda: ModelTokenizer(model.path))
    stats = take_in(
        stage.job,
        stage.resource.deployment,
        stage.tables,
        stage.partition,
        cutter,
        _progress_line(stage),
    )
    log = stage.context.log
    log.info(
        f"{stats.input_rows} input rows: {stats.requests} requests, {stats.rejected} rejected "
        f"({counts(stats.rejected_codes)})"
    )
    for warning in stats.warnings:
        log.warning(warning)
    return _result(
        stage,
        "raw_requests",
        ["custom_id", "body"],
        {
            "input_rows": stats.input_rows,
            "requests": stats.requests,
            "carried_over": stats.carried,
            "rejected": stats.rejected,
            "rejected_by_code": counts(stats.rejected_codes),
            "rejected_table": table_path(stage.tables, "rejected"),
        },
    )


def materialise_sorted_requests(stage: Stage) -> Materialised:
    """Stage 2: distinct requests in prefix order."""
    block_size = stage.resource.deployment.environment.backends.local.engine.block_size
    model = stage.model()
    stats = sort_requests(
        model,
        stage.tables,
        stage.partition,
        block_size,
        tell=stage.context.log.warning,
        on_progress=_progress_line(stage),
        apart=apart(stage.job, stage.tables, stage.partition),
        evaluation=evaluation_requests(stage.job, TokenCutter(lambda: ModelTokenizer(model.path))),
        job=stage.job,
    )
    stage.context.log.info(
        f"{stats.requests} requests, {stats.distinct} distinct, {stats.prompt_tokens} prompt "
        f"tokens; {percent(stats.sharing)} repeat a prefix, {stats.rejected} rejected"
    )
    for warning in stats.warnings:
        stage.context.log.warning(warning)
    return _result(
        stage,
        "sorted_requests",
        ["request_hash"],
        {
            "requests": stats.requests,
            "distinct_requests": stats.distinct,
            "duplicates": stats.requests - stats.distinct,
            "rejected": stats.rejected,
            "limited_answers": stats.limited,
            "prompt_tokens": stats.prompt_tokens,
            "prefix_sharing": round(stats.sharing, 4),
            "hit_rate_bound": round(stats.hit_rate_bound, 4),
            "spilled_bytes": stats.spilled_bytes,
            **image_metadata(stats.images),
            **column_metadata(stage.job, stage.resource.deployment, stage.partition),
        },
    )


def _progress_line(stage: Stage) -> Callable[[str], None]:
    """Tells now and then how far a stage is."""
    throttle = Throttle(_TELL_SECONDS, _TELL_GROWTH)

    def tell(text: str) -> None:
        if throttle.ready():
            stage.context.log.info(text, extra={PROGRESS: True})

    return tell


def materialise_profile(stage: Stage) -> Materialised:
    """Stage 3: the measures and the plan."""
    deployment = stage.resource.deployment
    found = profile(stage.job, deployment, stage.model(), stage.tables, stage.partition)
    stage.context.log.info(
        f"prompt tokens: p50 {found.prompt_p50}, p95 {found.prompt_p95}, max {found.prompt_max}; "
        f"expected hit rate {percent(found.hit_rate_bound)}; {len(found.plan.shards)} replica(s)"
    )
    return _result(
        stage,
        "profile",
        ["plan"],
        {
            "distinct_requests": found.distinct_requests,
            "sample_rows": found.sample_rows,
            "prompt_tokens_p50": found.prompt_p50,
            "prompt_tokens_p95": found.prompt_p95,
            "prompt_tokens_max": found.prompt_max,
            "prefix_sharing": round(found.sharing, 4),
            "hit_rate_bound": round(found.hit_rate_bound, 4),
            **plan_metadata(found.plan, found.choice),
        },
        digest=version_of(found.plan.run),
    )


def materialise_inference(stage: Stage) -> Materialised:
    """Stage 4: run the plan, then ask again what failed."""
    model = stage.model()
    check_local()
    context, throttle = stage.context, Throttle(_TELL_SECONDS, _TELL_GROWTH)
    told: Progress | None = None

    def on_progress(progress: Progress) -> None:
        nonlocal told
        if progress.state == "finished":
            return  # the summary follows
        if (
            told is None
            or (progress.state, progress.trouble) != (told.state, told.trouble)
            or (progress.computed != told.computed and throttle.ready())
        ):
            told = progress
            context.log.info(str(progress), extra={PROGRESS: True})
            context.log_event(_observation(context, progress))

    def run(plan: Plan, attempt: int) -> Progress:
        return run_local(
            plan,
            stage.tables,
            stage.resource.deployment,
            stage.partition,
            context.run_id,
            on_progress,
            context.log.debug,
            attempt,
        )

    done, retried = run(read_plan(stage.tables, stage.partition), 1), 0
    context.log.info(f"{done}; {done.computed} computed, {done.total - done.computed} reused")
    while again := plan_retries(stage.job, model, stage.tables, stage.partition):
        context.log.info(f"attempt {again.attempt} after failures: {counts(again.classes)}")
        retried += run(read_retry_plan(stage.tables, stage.partition), again.attempt).computed
    return _result(
        stage,
        "inference",
        ["request_hash", "text"],
        {
            "requests": done.total,
            "computed": done.computed,
            "reused": done.total - done.computed,
            "failed": done.failed,
            "retried": retried,
            "batch_fill": round(done.batch_fill, 4),
            "engine_restarts": done.restarts,
            "prompt_tokens": done.prompt_tokens,
            "completion_tokens": done.completion_tokens,
            "prefix_hit_rate": round(done.hit_rate or 0.0, 4),
            "tokens_per_second": round(done.tokens_per_second or 0.0, 1),
            "seconds": round(done.seconds, 1),
        },
    )


def _observation(context: dg.AssetExecutionContext, progress: Progress) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset_key=context.asset_key,
        partition=context.partition_key if context.has_partition_key else None,
        metadata={
            "done": progress.done,
            "total": progress.total,
            "seconds_left": round(progress.seconds_left),
            "running_requests": progress.running,
            "batch_fill": round(progress.batch_fill, 4),
            "prefix_hit_rate": round(progress.hit_rate or 0.0, 4),
            "tokens_per_second": round(progress.tokens_per_second or 0.0, 1),
        },
    )


def materialise_outputs(stage: Stage) -> Materialised:
    """Stage 5: answers back to their rows, with their checks, cost and a sample."""
    costs = RunCosts.of(stage.tables, stage.resource.deployment.environment.prices)
    run_id = _run_of_inference(stage)
    stats = reconcile(stage.job, stage.tables, stage.partition, costs, run_id)
    evaluation = evaluate(stage.job, stage.tables, stage.partition)
    health = record_run(
        stage.job, stage.tables, stage.partition, stage.context.run.run_id, costs, stats, evaluation
    )
    compared = comparison(stage.tables, stage.partition, costs)
    stage.context.log.info(str(compared))
    stage.context.log.info(str(stats.savings))
    if evaluation is not None:
        stage.context.log.info(f"evaluation set: {evaluation}")
    sample = spot_check(stage.job, stage.tables, stage.partition)
    balance = stats.ledger
    stage.context.log.info(
        f"{balance.input_rows} input rows = {balance.outputs} outputs + {balance.rejected} "
        f"rejected + {balance.dead_letter} dead letter; failures: {counts(stats.failures)}"
    )
    return _result(
        stage,
        "outputs",
        ["custom_id", "text", "status"],
        {
            "input_rows": balance.input_rows,
            "outputs": stats.outputs,
            "rejected": balance.rejected,
            "dead_letter": stats.dead_letter,
            "failures": counts(stats.failures),
            "dead_letter_table": table_path(stage.tables, "dead_letter"),
            **savings_metadata(stats.savings),
            **evaluation_metadata(evaluation, stage.tables),
            **health_metadata(health, compared, stage.tables),
            **spot_check_metadata(sample, stage.tables),
        },
        check_results(stage.job, stage.tables, stage.partition, balance, evaluation),
    )


def _run_of_inference(stage: Stage) -> str | None:
    """The newest run of `inference` for the partition, as Dagster knows it."""
    context = stage.context
    found = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(
            asset_key=dg.AssetKey([stage.job.name, "inference"]),
            asset_partitions=[context.partition_key] if context.has_partition_key else None,
        ),
        limit=1,
    )
    return found.records[0].run_id if found.records else None


def _result(
    stage: Stage,
    name: TableName,
    content: list[str],
    stats: dict[str, Any],
    checks: Sequence[dg.AssetCheckResult] = (),
    digest: str | None = None,
) -> Materialised:
    """The stage's table as a materialisation; its data version is `digest`, or one of `content`.

    With a digest, a re-run that changes nothing does not make the next stages stale.
    """
    answers = stage.job.answer_columns if name == "outputs" else []
    if digest is None:
        rows = stage.tables.scan(name, stage.partition).select(pl.struct(content).hash(0).sum())
        digest = f"{rows.collect().item() or 0:016x}"
    return dg.MaterializeResult(
        metadata={
            **stats,
            **table_metadata(stage.tables, name, stage.partition, answers),
        },
        data_version=dg.DataVersion(digest),
        check_results=list(checks),
    )
