# pyright: reportUnknownMemberType=false
# Dagster types what its public functions take only in part.
"""The Dagster component: one `defs.yaml` becomes five assets, a job and, if asked, a schedule."""

from collections.abc import Sequence

import dagster as dg
from pydantic import BaseModel

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, ModelError
from acdc_dagster.job import BatchJob, Job
from acdc_dagster.lineage.assets import stage_assets
from acdc_dagster.lineage.partitions import partitions_of
from acdc_dagster.requests.prompts.bodies import prompt_of
from acdc_dagster.tables import Tables


class BatchInferenceComponent(dg.Component):
    """An offline LLM batch job: raw requests to reconciled outputs as partitioned assets."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What `dg` shows of the component."""
        return dg.ComponentTypeSpec(description=cls.__doc__)

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The schema of `attributes:`."""
        return BatchJob

    @classmethod
    def load(
        cls, attributes: BaseModel | None, context: dg.ComponentLoadContext
    ) -> "BatchInferenceComponent":
        """The component for a declaration; its prompt and schema files are read and checked."""
        assert isinstance(attributes, BatchJob)  # noqa: S101 - get_model_cls says so
        job = Job.of(context.path, attributes)
        if job.prompt is not None:
            prompt_of(job)
        return cls(job)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The job's assets, its Dagster job and its schedule.

        Raises:
            DeclarationError: Dagster refuses one of them: a cron line, an owner, a partition key.
        """
        try:
            return self._definitions(Deployment.load(context.project_root))
        except dg.DagsterInvalidDefinitionError as error:
            raise DeclarationError(
                f"{self.job.folder / 'defs.yaml'}: {error}", "Correct the field."
            ) from error

    def _definitions(self, deployment: Deployment) -> dg.Definitions:
        try:
            revision = deployment.model(self.job.declared.model).revision
        except ModelError:  # the assets say so when they run; the UI loads without the model
            revision = None
        tables = Tables(deployment.tables_root, self.job.name)
        assets = stage_assets(self.job, tables, revision)
        run = dg.define_asset_job(
            f"{self.job.name}_job", selection=assets, description=self.job.declared.description
        )
        schedules = [] if self.job.declared.schedule is None else [self._schedule(run.name)]
        return dg.Definitions(assets=assets, jobs=[run], schedules=schedules)

    def _schedule(self, job_name: str) -> dg.ScheduleDefinition:
        declared = self.job.declared
        partitions = partitions_of(declared)

        def newest(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
            if partitions is None:
                return dg.RunRequest()
            keys: Sequence[str] = ()
            if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
                window = partitions.get_prev_partition_window(context.scheduled_execution_time)
                if window is not None:
                    keys = partitions.get_partition_keys_in_time_window(window)
            else:
                keys = partitions.get_partition_keys()
            if not keys or not partitions.has_partition_key(keys[-1]):
                return dg.SkipReason("no partition is complete yet, or all are over")
            return dg.RunRequest(run_key=keys[-1], partition_key=keys[-1])

        return dg.ScheduleDefinition(
            name=f"{self.job.name}_schedule",
            job_name=job_name,
            cron_schedule=declared.schedule,
            execution_timezone=declared.timezone,
            execution_fn=newest,
        )
