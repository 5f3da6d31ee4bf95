"""`acdc plan`: what a prepared partition would take on GPUs that need not be there."""

from collections.abc import Sequence

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import AcdcError, IncompleteError
from acdc_dagster.gpus import Pool, known_gpus, parse_pool
from acdc_dagster.job import Job
from acdc_dagster.planning.choice import Goal
from acdc_dagster.planning.forecast_report import Forecast, Spread
from acdc_dagster.planning.planner import plan_partition
from acdc_dagster.planning.what_if import Option, missed, options
from acdc_dagster.prefix.order import sharing
from acdc_dagster.tables import Tables

_LOOKED_AT = 16  # GPUs of each kind, where none are asked for


def forecast(
    job: Job,
    deployment: Deployment,
    partition: str,
    asked: Sequence[str],
    goal: Goal,
    *,
    what_if: bool = False,
) -> Forecast:
    """Plan one prepared partition for pools of GPUs; nothing is written and nothing is started.

    Args:
        job: The job.
        deployment: Where its model and tables are.
        partition: Its key.
        asked: Pools as `NAME:COUNT`; none: the deployment's devices.
        goal: Limits of time and cost.
        what_if: Look at other numbers of these GPUs too; if none are asked for, at all known kinds.

    Raises:
        IncompleteError: The partition has no sorted requests.
        DeclarationError: A pool is not known.
        ModelError: The model's shape is not known.
        PlanError: No layout of the pools can run the job.
        TableError: The storage refused.
    """
    model = deployment.model(job.declared.model)
    tables = Tables(deployment.tables_root, job.name, deployment.environment.storage_options)
    planned = plan_partition(job, deployment, model, tables, partition, asked, goal)
    if not len(planned.lengths):
        raise _not_prepared(job, tables, partition)
    if isinstance(planned.choice, AcdcError):
        raise planned.choice
    others: list[Option] = []
    if what_if:
        pools = _other_pools(deployment, asked)
        # Pins of the environment are for its own devices.
        names = [str(pool) for pool in pools]
        elsewhere = plan_partition(job, deployment, model, tables, partition, names)
        others = options(elsewhere.search, pools, goal)
    choice = planned.choice
    return Forecast(
        job=job.name,
        partition=partition,
        model=model.name,
        requests=len(planned.lengths),
        prompts=Spread.of(planned.lengths),
        answers=Spread.of(planned.answers.tokens),
        answers_from=planned.answers.source,
        answers_cut=planned.answers.cut,
        sharing=sharing(planned.lcp, planned.lengths),
        hit_rate=planned.work.hit_rate,
        choice=choice,
        missed=[] if choice.met else missed(choice.candidates, planned.search, goal),
        what_if=others,
        plan=planned.plan,
    )


def _other_pools(deployment: Deployment, asked: Sequence[str]) -> list[Pool]:
    """Those that are asked for; else a few of each kind of GPU."""
    gpus = known_gpus(deployment.environment.gpus)
    names = asked or [f"{name}:{_LOOKED_AT}" for name in gpus if name != "CPU"]
    return [parse_pool(text, gpus) for text in dict.fromkeys(names)]


def _not_prepared(job: Job, tables: Tables, partition: str) -> IncompleteError:
    there = tables.collect(
        tables.scan("sorted_requests").select("partition_key").unique().sort("partition_key")
    )["partition_key"].to_list()
    known = f" Prepared are: {', '.join(there[-5:])}." if there else ""
    return IncompleteError(
        f"Partition {partition!r} of {job.name} has no sorted requests to plan for.{known}",
        f"Materialise {job.name}/sorted_requests for it first, or give --partition.",
    )
