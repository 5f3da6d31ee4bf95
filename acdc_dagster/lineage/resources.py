"""The deployment as a Dagster resource, so that assets meet storage and models in one place."""

from functools import cached_property
from pathlib import Path

import dagster as dg

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.tables import Tables


class DeploymentResource(dg.ConfigurableResource[Deployment]):
    """A deployment folder under one environment; see `acdc_dagster.deployment`."""

    root: str
    env: str

    @cached_property
    def deployment(self) -> Deployment:
        """The deployment, its YAML read and checked."""
        return Deployment.load(Path(self.root), self.env)

    def tables(self, job: Job) -> Tables:
        """The job's tables."""
        return Tables(
            self.deployment.tables_root, job.name, self.deployment.environment.storage_options
        )
