"""`acdc plan`: what a prepared partition would take on GPUs that need not be there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import IncompleteError
from acdc_dagster.gpus import Pool, known_gpus, parse_pool
from acdc_dagster.job import Job
from acdc_dagster.planning.answers import expected_answers
from acdc_dagster.planning.choice import Goal, candidates, choose
from acdc_dagster.planning.cost.makespan import EngineLimits
from acdc_dagster.planning.cost.workload import workload
from acdc_dagster.planning.forecast_report import Forecast, Spread
from acdc_dagster.planning.shapes.model import read_shape
from acdc_dagster.planning.why import reasons
from acdc_dagster.prefix.order import sharing
from acdc_dagster.tables import Tables

_GPU_BLOCK = 16  # tokens of a KV block, vLLM's default on a GPU


@dataclass(frozen=True)
class _Engine:
    """What the planner takes of the engines: those of a GPU, or the environment's own."""

    pools: list[Pool]
    limits: EngineLimits
    block_size: int
    dtype: str
    kv_cache_dtype: str


def forecast(
    job: Job, deployment: Deployment, partition: str, asked: Sequence[str], goal: Goal
) -> Forecast:
    """Plan one prepared partition for pools of GPUs; nothing is written and nothing is started.

    Args:
        job: The job.
        deployment: Where its model and tables are.
        partition: Its key.
        asked: Pools as `NAME:COUNT`; none: the replicas of the local backend.
        goal: Limits of time and cost.

    Raises:
        IncompleteError: The partition has no sorted requests.
        DeclarationError: A pool is not known.
        ModelError: The model's shape is not known.
        PlanError: No layout of the pools can run the job.
        TableError: The storage refused.
    """
    model = deployment.model(job.declared.model)
    engine = _engine(deployment, asked)
    shape = read_shape(model.path, engine.dtype, engine.kv_cache_dtype)
    tables = Tables(deployment.tables_root, job.name, deployment.environment.storage_options)
    columns = ["position", "prompt_tokens", "lcp", "max_tokens"]
    rows = tables.read("sorted_requests", partition, columns).sort("position")
    if rows.is_empty():
        raise _not_prepared(job, tables, partition)
    # Tables of an earlier version have no caps; those of a source of rows are all the same.
    rows = rows.with_columns(pl.col("max_tokens").fill_null(job.declared.sampling.max_tokens))
    lengths, lcp, caps = (rows[name].to_numpy().astype(np.int64) for name in columns[1:])
    answers = expected_answers(tables, partition, job.prompt_version, caps)
    work = workload(lengths, lcp, answers.tokens, engine.block_size, engine.limits.tokens)
    choice = choose(candidates(shape, engine.pools, work, engine.limits), goal)
    return Forecast(
        job=job.name,
        partition=partition,
        model=model.name,
        requests=len(lengths),
        prompts=Spread.of(lengths),
        answers=Spread.of(answers.tokens),
        answers_from=answers.source,
        answers_cut=answers.cut,
        sharing=sharing(lcp, lengths),
        hit_rate=work.hit_rate,
        choice=choice,
        why=reasons(choice, shape, work, engine.limits),
    )


def _engine(deployment: Deployment, asked: Sequence[str]) -> _Engine:
    environment = deployment.environment
    gpus = known_gpus(environment.gpus)
    local = environment.backends.local
    kv_cache_dtype = str(local.engine.extra.get("kv_cache_dtype", "auto"))
    if asked:
        pools = [parse_pool(text, gpus) for text in dict.fromkeys(asked)]
        return _Engine(pools, EngineLimits(), _GPU_BLOCK, "auto", kv_cache_dtype)
    engine = local.engine
    limits = EngineLimits(engine.max_num_seqs, engine.max_num_batched_tokens)
    here = [Pool("CPU", gpus["CPU"], local.replicas)]
    return _Engine(here, limits, engine.block_size, engine.dtype, kv_cache_dtype)


def _not_prepared(job: Job, tables: Tables, partition: str) -> IncompleteError:
    there = tables.collect(
        tables.scan("sorted_requests").select("partition_key").unique().sort("partition_key")
    )["partition_key"].to_list()
    known = f" Prepared are: {', '.join(there[-5:])}." if there else ""
    return IncompleteError(
        f"Partition {partition!r} of {job.name} has no sorted requests to plan for.{known}",
        f"Materialise {job.name}/sorted_requests for it first, or give --partition.",
    )
