"""Deployments for tests: real folders with real tables, under the test's own temporary folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings
from support import MODEL, REPOSITORY, Declare

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.tables import Tables

# The same examples everywhere, however slow the machine.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The sample model that `make setup` converts."""
    path = REPOSITORY / "data" / "models" / MODEL
    assert (path / "model.safetensors").is_file(), "the sample model is missing: run make setup"
    return path


@pytest.fixture
def deployment(tmp_path: Path, model_path: Path) -> Deployment:
    """An empty deployment whose tables lie in the test's folder."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "resources").mkdir()
    environment: dict[str, Any] = yaml.safe_load(
        (REPOSITORY / "resources" / "local.yaml").read_text()
    )
    environment["tables"] = "tables"
    environment["models"][MODEL]["path"] = str(model_path)
    environment["backends"]["local"]["replicas"] = 1
    (tmp_path / "resources" / "local.yaml").write_text(yaml.safe_dump(environment))
    return Deployment.load(tmp_path, "local")


@pytest.fixture
def declare(deployment: Deployment) -> Declare:
    """Writes a job's folder and loads it: `declare(name, attributes, **files by name)`."""

    def make(name: str, attributes: dict[str, Any], **files: str) -> Job:
        folder = deployment.root / "assets" / name
        folder.mkdir(parents=True, exist_ok=True)
        component = "acdc_dagster.BatchInferenceComponent"
        declared = {"type": component, "attributes": attributes}
        (folder / "defs.yaml").write_text(yaml.safe_dump(declared, sort_keys=False))
        for file, text in files.items():
            (folder / file.replace("_dot_", ".")).write_text(text)
        return Job.load(folder)

    return make


@pytest.fixture
def tables(deployment: Deployment) -> Callable[[Job], Tables]:
    """The tables of a job."""
    return lambda job: Tables(deployment.tables_root, job.name)
