"""Planning one prepared partition: one plan for the profile, the worker and the report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import AcdcError, ModelError
from acdc_dagster.gpus import Pool, known_gpus, parse_pool
from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.planning.answers import ExpectedAnswers, expected_answers
from acdc_dagster.planning.choice import Choice, Goal, PlanError, candidates, choose
from acdc_dagster.planning.cost.makespan import Prediction
from acdc_dagster.planning.cost.workload import Workload, workload
from acdc_dagster.planning.history.correction import Correction
from acdc_dagster.planning.history.runs import Run, measured_runs
from acdc_dagster.planning.pins import Pins, pins_of
from acdc_dagster.planning.plan import Plan, Predicted, Runner, Shard
from acdc_dagster.planning.shapes.model import ModelShape, read_shape
from acdc_dagster.planning.shards import ATTENTION_WEIGHT, cut_points, request_cost
from acdc_dagster.planning.speculation.stage import speculation_of
from acdc_dagster.planning.why import reasons
from acdc_dagster.requests.body import EMBEDDINGS
from acdc_dagster.tables import Tables

Ints = NDArray[np.int64]
_Search = Callable[[Workload, Sequence[Pool]], list[Prediction]]
_LIMITS = 16  # sets of limits that were measured are looked at, the newest first


@dataclass(frozen=True)
class Planned:
    """A plan, and what it was made from.

    Attributes:
        lengths: int64[N], prompt tokens in prefix order.
        lcp: int64[N], prompt tokens shared with the request before.
        answers: Expected lengths of the answers.
        work: The job in numbers.
        choice: The candidates and the best of them, or why nothing can be predicted.
        plan: How the partition runs.
        search: The candidates for it on other pools, under the same pins; raises PlanError.
    """

    lengths: Ints
    lcp: Ints
    answers: ExpectedAnswers
    work: Workload
    choice: Choice | AcdcError
    plan: Plan
    search: Callable[[Sequence[Pool]], list[Prediction]]


@dataclass(frozen=True)
class _Site:
    """Where a plan is made for.

    Attributes:
        pools: The devices.
        own: They are the environment's, and its workers run the plan.
        on_gpus: They are not the CPU workers that an environment without a pool has.
    """

    pools: list[Pool]
    pins: Pins
    own: bool
    on_gpus: bool


def plan_partition(
    job: Job,
    deployment: Deployment,
    model: Model,
    tables: Tables,
    partition: str,
    asked: Sequence[str] = (),
    goal: Goal | None = None,
) -> Planned:
    """Plan a partition whose requests are sorted; nothing is written and nothing is started.

    What is pinned stays as it is; the other degrees and limits are those of the best candidate. A
    model that the planner cannot describe runs as declared, as does one on a CPU for which the
    figures of a CPU, which are assumed, leave no room.

    Args:
        job: The job.
        deployment: Where it runs.
        model: The job's.
        tables: Of the job.
        partition: Its key.
        asked: Pools as `NAME:COUNT` to plan for; none: the devices of the deployment.
        goal: Limits of time and cost.

    Raises:
        DeclarationError: A pool is not known.
        ModelError: The model's shape is not known, and other pools are asked for.
        PlanError: No layout of the pools can run the job.
        TableError: The storage refused.
    """
    site = _site(job, deployment, asked)
    columns = ["prompt_tokens", "lcp", "max_tokens"]
    read = [*columns, "position", "image_tokens"]
    rows = tables.read("sorted_requests", partition, read).sort("position")
    rows = rows.with_columns(
        # Tables of an earlier version have no caps; those of a source of rows are all the same.
        pl.col("max_tokens").fill_null(job.declared.sampling.max_tokens),
        # What images become is prompt as well; where only the engine can tell, it is left out.
        pl.col("prompt_tokens") + pl.col("image_tokens").fill_null(0),
    )
    lengths, lcp, caps = (rows[name].to_numpy().astype(np.int64) for name in columns)
    runner = _runner(tables, partition)
    if runner == "pooling":
        answers = ExpectedAnswers(np.zeros_like(caps), "the endpoint, which gives vectors", None)
    else:
        answers = expected_answers(tables, partition, job.prompt_version, caps)
    limits = site.pins.limits(on_gpus=site.on_gpus)
    work = workload(lengths, lcp, answers.tokens, site.pins.engine.block_size, limits.tokens)
    weight, shape = ATTENTION_WEIGHT, None
    try:
        shape = _shape(model, site.pins)
        weight = shape.attention_weight
        search = _search(shape, site, deployment, measured_runs(deployment, model.name))
        choice = choose(search(work, site.pools), goal)
        best = choice.best
        why = reasons(choice, shape, work, lambda other: search(other, site.pools))
    except (ModelError, PlanError) as error:
        if not site.own or (site.on_gpus and isinstance(error, PlanError)):
            raise
        choice, best, search = error, None, _no_search(error)
        why = [f"The settings are as declared, since nothing can be predicted: {error.problem}"]
    if site.pins.places:
        why.append(f"Pinned: {site.pins}.")
    settings = site.pins.settings(model, on_gpus=site.on_gpus, best=best, runner=runner)
    if runner == "generate":
        drafts = speculation_of(tables, partition, model, site.pins, best, shape, work)
        settings = settings.model_copy(update={"speculation": drafts.speculation})
        why.append(drafts.why)
    replicas = site.pins.replicas or max(site.pools[0].count // settings.tensor_parallel, 1)
    if best is not None:
        replicas = best.layout.data
    # A cap says little where it is high, as of a body that leaves the whole context to its answer.
    expected = np.minimum(caps, job.declared.sampling.max_tokens)
    if answers.cut is not None:
        expected = np.minimum(expected, answers.tokens.mean())
    cost = request_cost(lengths, lcp, expected, attention_weight=weight)
    local = deployment.environment.backends.local
    plan = Plan(
        backend=job.declared.backend,
        model=model.name,
        model_revision=model.revision,
        engine=settings,
        shards=[
            Shard(number=number, start=start, stop=stop)
            for number, (start, stop) in enumerate(cut_points(lcp, cost, replicas))
        ],
        commit=local.commit,
        limits=local.limits,
        why=why,
        predicted=None if best is None else _predicted(best),
        pinned=sorted(site.pins.places),
    )
    return Planned(lengths, lcp, answers, work, choice, plan, lambda pools: search(work, pools))


def _site(job: Job, deployment: Deployment, asked: Sequence[str]) -> _Site:
    gpus = known_gpus(deployment.environment.gpus)
    pins = pins_of(job, deployment, elsewhere=bool(asked))
    if asked:
        pools = [parse_pool(text, gpus) for text in dict.fromkeys(asked)]
        return _Site(pools, pins, own=False, on_gpus=True)
    pool = deployment.environment.pool
    if pool is not None:
        return _Site([pool], pins, own=True, on_gpus=True)
    return _Site([Pool("CPU", gpus["CPU"], pins.replicas or 1)], pins, own=True, on_gpus=False)


def _shape(model: Model, pins: Pins) -> ModelShape:
    kv_cache_dtype = str(pins.engine.extra.get("kv_cache_dtype", "auto"))
    return read_shape(model.path, pins.engine.dtype, kv_cache_dtype)


def _search(shape: ModelShape, site: _Site, deployment: Deployment, runs: Sequence[Run]) -> _Search:
    """Gives the candidates for a job on pools, the fastest first, corrected by what was measured.

    The limits of an engine are those that suit the devices, and those that were measured on them
    last.
    """
    pins = site.pins
    usual = pins.limits(on_gpus=site.on_gpus)
    fixed = pins.fixed(independent=site.own)
    gpus = known_gpus(deployment.environment.gpus)
    correction = Correction(shape, gpus, runs, datetime.now(UTC))

    def search(job: Workload, pools: Sequence[Pool]) -> list[Prediction]:
        here = {pool.name for pool in pools}
        tried = dict.fromkeys(run.limits for run in runs if run.gpu in here)
        allowed = [each for each in tried if each != usual and pins.allow(each)]
        limits = [usual, *allowed[:_LIMITS]]
        found = [each for limit in limits for each in candidates(shape, pools, job, limit, fixed)]
        return sorted(correction.of(found, job), key=lambda each: (each.seconds, each.gpu_seconds))

    return search


def _no_search(error: AcdcError) -> _Search:
    def search(job: Workload, pools: Sequence[Pool]) -> list[Prediction]:
        raise error

    return search


def _predicted(best: Prediction) -> Predicted:
    return Predicted(
        pool=str(best.pool),
        layout=str(best.layout),
        seconds=best.seconds,
        gpu_seconds=best.gpu_seconds,
        cost=best.cost,
        source=best.source,
        error=best.error,
    )


def _runner(tables: Tables, partition: str) -> Runner:
    """What the engine has to give; one partition has one endpoint."""
    first = next(tables.batches("raw_requests", partition, 1), None)
    return "pooling" if first is not None and first["endpoint"][0] == EMBEDDINGS else "generate"
