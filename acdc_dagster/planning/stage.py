"""Stage 3: measure the sorted requests of one partition and plan their run."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from pydantic import ValidationError

from acdc_dagster.deployment import Deployment, LocalBackend, Model
from acdc_dagster.errors import IncompleteError, ModelError
from acdc_dagster.job import Job
from acdc_dagster.planning.plan import EngineSettings, Plan, Runner, Shard
from acdc_dagster.planning.sample import sample_positions
from acdc_dagster.planning.shapes.model import read_shape
from acdc_dagster.planning.shards import ATTENTION_WEIGHT, cut_points, request_cost
from acdc_dagster.prefix.order import hit_rate, sharing
from acdc_dagster.requests.body import EMBEDDINGS
from acdc_dagster.tables import Tables


@dataclass(frozen=True)
class Profile:
    """What stage 3 found: one row of `profile`, with the plan."""

    input_rows: int
    valid_requests: int
    distinct_requests: int
    prompt_tokens: int
    sample_rows: int
    prompt_p50: int
    prompt_p95: int
    prompt_max: int
    sharing: float
    hit_rate_bound: float
    plan: Plan


def profile(
    job: Job, deployment: Deployment, model: Model, tables: Tables, partition: str
) -> Profile:
    """Fill `profile` for one partition.

    Lengths come from the sample; sharing and the hit-rate bound from the whole order, which costs
    three columns. The plan takes the environment's settings for the job's backend.

    Raises:
        TableError: The storage refused; run the partition again.
    """
    columns = ["position", "prompt_tokens", "lcp", "max_tokens"]
    rows = tables.read("sorted_requests", partition, columns).sort("position")
    # Tables of an earlier version have no caps.
    rows = rows.with_columns(pl.col("max_tokens").fill_null(job.declared.sampling.max_tokens))
    lengths, lcp, caps = (rows[name].to_numpy().astype(np.int64) for name in columns[1:])
    settings = deployment.environment.backends.local
    plan = _plan(job, model, settings, lengths, lcp, caps, _runner(tables, partition))
    sample = lengths[sample_positions(len(lengths))] if len(lengths) else lengths
    mapped = tables.read("request_map", partition, ["input_rows"])["input_rows"]
    rejected = tables.read("rejected", partition, ["input_rows"])["input_rows"]
    found = Profile(
        input_rows=int(mapped.sum()) + int(rejected.sum()),
        valid_requests=len(mapped),
        distinct_requests=len(lengths),
        prompt_tokens=int(lengths.sum()),
        sample_rows=len(sample),
        prompt_p50=_quantile(sample, 0.5),
        prompt_p95=_quantile(sample, 0.95),
        prompt_max=int(lengths.max()) if len(lengths) else 0,
        sharing=sharing(lcp, lengths),
        hit_rate_bound=hit_rate(lcp, lengths, settings.engine.block_size),
        plan=plan,
    )
    measured = {name: value for name, value in vars(found).items() if name != "plan"}
    row = pl.DataFrame([{**measured, "plan": plan.model_dump_json(), "why": "\n".join(plan.why)}])
    tables.replace("profile", partition, row)
    return found


def read_plan(tables: Tables, partition: str) -> Plan:
    """The plan of one partition.

    Raises:
        IncompleteError: There is none yet, or it is of another version of this package.
    """
    plans = tables.read("profile", partition, ["plan"])["plan"]
    if plans.is_empty():
        raise IncompleteError(
            f"There is no plan for partition {partition!r} of {tables.job}.",
            f"Materialise {tables.job}/profile for this partition first.",
        )
    try:
        return Plan.model_validate_json(plans[0])
    except ValidationError as error:
        raise IncompleteError(
            f"The plan of partition {partition!r} of {tables.job} is of another version of "
            "acdc-dagster.",
            f"Materialise {tables.job}/profile for this partition again.",
        ) from error


def read_retry_plan(tables: Tables, partition: str) -> Plan:
    """The partition's plan with the shards of its `retries` instead of its own.

    Raises:
        IncompleteError: Nothing is to be asked again.
    """
    asked = tables.scan("retries", partition).group_by("shard")
    ranges = asked.agg(
        pl.col("position").min().alias("start"), (pl.col("position").max() + 1).alias("stop")
    ).sort("shard")
    shards = [
        Shard(number=number, start=start, stop=stop)
        for number, start, stop in tables.collect(ranges).iter_rows()
    ]
    if not shards:
        raise IncompleteError(
            f"Nothing of partition {partition!r} of {tables.job} is to be asked again.",
            f"Materialise {tables.job}/inference for this partition.",
        )
    return read_plan(tables, partition).model_copy(update={"shards": shards})


def _plan(
    job: Job,
    model: Model,
    settings: LocalBackend,
    lengths: np.typing.NDArray[np.int64],
    lcp: np.typing.NDArray[np.int64],
    caps: np.typing.NDArray[np.int64],
    runner: Runner,
) -> Plan:
    engine = settings.engine
    # A cap says little where it is high, as of a body that leaves the whole context to its answer.
    answers = np.minimum(caps, job.declared.sampling.max_tokens)
    cost = request_cost(lengths, lcp, answers, attention_weight=_attention_weight(model))
    ranges = cut_points(lcp, cost, settings.replicas)
    return Plan(
        backend=job.declared.backend,
        model=model.name,
        model_revision=model.revision,
        engine=EngineSettings(
            model_path=str(model.path),
            max_model_len=model.context_length,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            block_size=engine.block_size,
            kv_cache_gib=engine.kv_cache_gib,
            dtype=engine.dtype,
            tensor_parallel=1,
            expert_parallel=1,
            runner=runner,
            reasoning_parser=model.reasoning_parser,
            extra=engine.extra,
        ),
        shards=[
            Shard(number=number, start=start, stop=stop)
            for number, (start, stop) in enumerate(ranges)
        ],
        commit=settings.commit,
        limits=settings.limits,
        why=[
            f"{len(ranges)} replica(s) and the engine settings as the environment gives them for "
            f"the {job.declared.backend} backend; nothing was measured yet to choose others.",
            "No tensor or expert parallelism: the local engine has one device a replica.",
            "No speculation: not planned in this version.",
        ],
    )


def _runner(tables: Tables, partition: str) -> Runner:
    """What the engine has to give; one partition has one endpoint."""
    first = next(tables.batches("raw_requests", partition, 1), None)
    return "pooling" if first is not None and first["endpoint"][0] == EMBEDDINGS else "generate"


def _attention_weight(model: Model) -> float:
    """The model's own; a model that the planner cannot describe can still be run."""
    try:
        return read_shape(model.path).attention_weight
    except ModelError:
        return ATTENTION_WEIGHT


def _quantile(values: np.typing.NDArray[np.int64], at: float) -> int:
    return int(np.quantile(values, at, method="higher")) if len(values) else 0
