"""The five assets of a job, as Dagster sees them; what they do is in `stages`."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import dagster as dg
from msgspec import structs

from acdc_dagster.errors import AcdcError
from acdc_dagster.job import Job, version_of
from acdc_dagster.lineage.checks import check_specs
from acdc_dagster.lineage.partitions import partition_of, partitions_of
from acdc_dagster.lineage.resources import DeploymentResource
from acdc_dagster.lineage.stages import (
    Materialised,
    Stage,
    materialise_inference,
    materialise_outputs,
    materialise_profile,
    materialise_raw_requests,
    materialise_sorted_requests,
)
from acdc_dagster.requests.prompts.cuts import TOKENS
from acdc_dagster.schemas import TableName
from acdc_dagster.tables import Tables

STAGES: tuple[TableName, ...] = (
    "raw_requests",
    "sorted_requests",
    "profile",
    "inference",
    "outputs",
)

_DESCRIPTIONS = {
    "raw_requests": "The valid requests of the source, one a custom_id; the rest in `rejected`.",
    "sorted_requests": "Each distinct request once, tokenised, in prefix order.",
    "profile": "What the job looks like, and the plan to run it.",
    "inference": "The engine's result for each distinct request, appended exactly once.",
    "outputs": "One row per custom_id; what got no usable answer is in `dead_letter`.",
}
_KINDS = {
    "raw_requests": {"deltalake"},
    "sorted_requests": {"deltalake", "polars"},
    "profile": {"deltalake", "polars"},
    "inference": {"deltalake", "vllm"},
    "outputs": {"deltalake", "polars"},
}


def stage_assets(job: Job, tables: Tables, model_revision: str | None) -> list[dg.AssetsDefinition]:
    """The five assets of a job, in order.

    Args:
        job: The job.
        tables: The job's tables, for what the UI says of where they lie.
        model_revision: Part of the code version of what the model shapes; None if the model is
            not there yet.
    """
    asked = version_of(job.prompt_version, job.declared.source.model_dump())
    by_tokens = TOKENS in (job.prompt or "") or job.declared.too_long.split is not None
    replicas = job.declared.replicas
    versions = {
        "raw_requests": version_of(asked, model_revision) if by_tokens else asked,
        "sorted_requests": version_of("1", model_revision, *map(structs.asdict, job.evaluation)),
        "profile": version_of("2", job.declared.engine.model_dump(exclude_unset=True), replicas),
        "inference": version_of("1", model_revision),
        "outputs": version_of("1", job.answer_schema),
    }
    bodies: dict[str, Callable[[Stage], Materialised]] = {
        "raw_requests": materialise_raw_requests,
        "sorted_requests": materialise_sorted_requests,
        "profile": materialise_profile,
        "inference": materialise_inference,
        "outputs": materialise_outputs,
    }
    assets: list[dg.AssetsDefinition] = []
    made_by = job.declared.source.asset
    upstream = [] if made_by is None else [dg.AssetKey(made_by.split("/"))]
    for number, name in enumerate(STAGES):
        before = upstream if number == 0 else [dg.AssetKey([job.name, STAGES[number - 1]])]
        spec = dg.AssetSpec(
            key=dg.AssetKey([job.name, name]),
            deps=before,
            description=_DESCRIPTIONS[name],
            group_name=job.name,
            kinds=_KINDS[name],
            owners=job.declared.owners,
            code_version=versions[name],
            tags={"acdc/job": job.name},
            metadata={
                "dagster/uri": tables.uri(name),
                "dagster/table_name": f"{job.name}.{name}",
            },
            partitions_def=partitions_of(job.declared),
        )
        assets.append(_asset(job, spec, bodies[name]))
    return assets


def _asset(
    job: Job, spec: dg.AssetSpec, body: Callable[[Stage], Materialised]
) -> dg.AssetsDefinition:
    name = spec.key.path[-1]

    @dg.multi_asset(
        name=f"{job.name}__{name}",
        specs=[spec],
        check_specs=check_specs(job, spec.key) if name == "outputs" else [],
    )
    def compute(
        context: dg.AssetExecutionContext, deployment: DeploymentResource
    ) -> Iterator[Materialised]:
        with _explained():
            tables = deployment.tables(job)
            yield body(Stage(job, context, deployment, tables, partition_of(context)))

    return compute


@contextmanager
def _explained() -> Generator[None]:
    """A fault that its user can mend fails the step with its text; a retry would not help."""
    try:
        yield
    except AcdcError as error:
        raise dg.Failure(
            description=str(error),
            metadata={"problem": error.problem, "remedy": error.remedy},
            allow_retries=False,
        ) from error
