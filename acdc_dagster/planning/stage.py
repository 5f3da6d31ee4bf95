"""Stage 3: measure the sorted requests of one partition and plan their run."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from pydantic import ValidationError

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import AcdcError, IncompleteError
from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.planning.choice import Choice
from acdc_dagster.planning.plan import Plan, Shard
from acdc_dagster.planning.planner import plan_partition
from acdc_dagster.planning.sample import sample_positions
from acdc_dagster.planning.strata import strata
from acdc_dagster.prefix.order import hit_rate, sharing
from acdc_dagster.tables import Tables

_NO_COLUMNS = ("plan", "choice")  # of a Profile, in the row of the table


@dataclass(frozen=True)
class Profile:
    """What stage 3 found: one row of `profile`, with the plan and what it was chosen from.

    Attributes:
        choice: The candidates; None if nothing can be predicted.
    """

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
    choice: Choice | None


def profile(
    job: Job, deployment: Deployment, model: Model, tables: Tables, partition: str
) -> Profile:
    """Fill `profile` for one partition.

    Lengths come from the sample; sharing and the hit-rate bound from the whole order, which costs
    three columns.

    Raises:
        PlanError: No layout of the deployment's pool can run the job.
        TableError: The storage refused; run the partition again.
    """
    planned = plan_partition(job, deployment, model, tables, partition)
    plan, lengths, lcp = planned.plan, planned.lengths, planned.lcp
    sample = lengths[sample_positions(len(lengths), starts=strata(lcp))]
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
        hit_rate_bound=hit_rate(lcp, lengths, plan.engine.block_size),
        plan=plan,
        choice=None if isinstance(planned.choice, AcdcError) else planned.choice,
    )
    measured = {name: value for name, value in vars(found).items() if name not in _NO_COLUMNS}
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


def _quantile(values: np.typing.NDArray[np.int64], at: float) -> int:
    return int(np.quantile(values, at, method="higher")) if len(values) else 0
