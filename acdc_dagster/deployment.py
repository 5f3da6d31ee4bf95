"""Where jobs run: a deployment folder with `assets/` and `resources/<env>.yaml`.

The repository itself is a deployment. `ACDC_DEPLOYMENT` names another folder and `ACDC_ENV` another
environment than `local`. Relative paths in the YAML are relative to the deployment folder, so that
a run does not depend on where it was started.
"""

import difflib
import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, field_validator, model_validator

from acdc_dagster.declared import Declared, declaration, line_of, read_text, read_yaml
from acdc_dagster.engine import Engine
from acdc_dagster.errors import DeclarationError, ModelError, NoDeploymentError
from acdc_dagster.gpus import Gpu, Pool, known_gpus, parse_pool
from acdc_dagster.job import Job
from acdc_dagster.models import Model, ModelPlace, adapted, found_model
from acdc_dagster.prices import Prices

_COMPONENT = "BatchInferenceComponent"
_TYPE = re.compile(r"^type\s*:\s*[\"']?([\w.]+)", re.MULTILINE)


class Commit(Declared):
    """When a worker commits a chunk of results: at whichever limit comes first.

    A crash costs at most what was not committed yet.
    """

    rows: int = Field(default=4096, ge=1)
    mib: float = Field(default=16.0, gt=0, description="Text of the answers.")
    seconds: float = Field(default=20.0, gt=0)


class Limits(Declared):
    """How long a worker waits, and how often it tries, before it gives up."""

    start_seconds: float = Field(
        default=1800.0, gt=0, description="For the engine to start; large models load for long."
    )
    stall_seconds: float = Field(
        default=300.0, gt=0, description="Without a step of the engine; then it counts as hung."
    )
    request_seconds: float | None = Field(
        default=None, gt=0, description="For one request, from when the engine got it."
    )
    engine_restarts: int = Field(
        default=16, ge=0, description="In one run of a worker, before it fails."
    )
    storage_seconds: float = Field(
        default=300.0, ge=0, description="A commit is tried again while the storage refuses."
    )
    grace_seconds: float = Field(
        default=20.0, ge=0, description="For running requests to end, once told to stop."
    )


class LocalBackend(Declared):
    """The embedded default: workers as child processes on this machine."""

    pool: str | None = Field(
        default=None, description="The GPUs of this machine, like H100:8; without it CPU workers."
    )
    replicas: int = Field(
        default=1, ge=1, description="Workers; with a pool they are planned if not given."
    )
    engine: Engine = Engine()
    commit: Commit = Commit()
    limits: Limits = Limits()
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables of the workers; no secrets."
    )


class Backends(Declared):
    """The backends that this environment offers."""

    local: LocalBackend = LocalBackend()


class Environment(Declared):
    """One `resources/<env>.yaml`: where tables and models are and where plans run."""

    tables: str = Field(description="Root of all tables: a folder, s3://, gs:// or abfss://.")
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        description="Passed to delta-rs; credentials come from its environment variables.",
    )
    models: dict[str, ModelPlace]
    gpus: dict[str, Gpu] = Field(
        default_factory=dict, description="GPUs to plan for, beside those known; see acdc plan."
    )
    backends: Backends = Backends()
    prices: Prices = Prices()

    @property
    def pool(self) -> Pool | None:
        """The GPUs that runs are planned for; None: as many CPU workers as declared."""
        text = self.backends.local.pool
        return None if text is None else parse_pool(text, known_gpus(self.gpus))

    @model_validator(mode="after")
    def _pool_is_known(self) -> Self:
        try:
            _ = self.pool
        except DeclarationError as error:
            raise ValueError(f"backends.local.pool: {error.problem} {error.remedy}") from None
        return self

    @property
    def model_names(self) -> list[str]:
        """What a job may name: the models, and the adapters to them."""
        return [*self.models, *(name for place in self.models.values() for name in place.loras)]

    @field_validator("models")
    @classmethod
    def _names_differ(cls, models: dict[str, ModelPlace]) -> dict[str, ModelPlace]:
        names = Counter([*models, *(name for place in models.values() for name in place.loras)])
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise ValueError(f"a name stands for one model or adapter: {', '.join(twice)}")
        return models


@dataclass(frozen=True)
class Deployment:
    """A deployment folder under one of its environments."""

    root: Path
    env: str
    environment: Environment

    @staticmethod
    def load(root: Path | None = None, env: str | None = None) -> "Deployment":
        """The deployment at `root` (or `ACDC_DEPLOYMENT`, or here) under `env` (or `ACDC_ENV`).

        Raises:
            NoDeploymentError: There is no environment at all, so the folder is no deployment.
            DeclarationError: `resources/<env>.yaml` is missing or wrong.
        """
        root = (root or Path(os.environ.get("ACDC_DEPLOYMENT", "."))).resolve()
        env = env or os.environ.get("ACDC_ENV", "local")
        path = root / "resources" / f"{env}.yaml"
        if not path.is_file():
            others = sorted(file.stem for file in (root / "resources").glob("*.yaml"))
            if others:
                raise DeclarationError(
                    f"{path} does not exist.", f"Set ACDC_ENV to one of: {', '.join(others)}."
                )
            raise NoDeploymentError(
                f"{path} does not exist.",
                "Start in a deployment folder, or set ACDC_DEPLOYMENT to one.",
            )
        return Deployment(root, env, declaration(Environment, path))

    def resolve(self, place: str) -> str:
        """A path of the YAML as an absolute path; a URI stays as it is."""
        if "://" in place:
            return place
        return str(self.root / Path(place).expanduser())

    @property
    def tables_root(self) -> str:
        """The root of all tables, as a URI or absolute path."""
        return self.resolve(self.environment.tables)

    def jobs(self) -> dict[str, Job]:
        """All declared jobs by name.

        Raises:
            DeclarationError: One of them is wrong; none can run then, as Dagster loads all.
        """
        ours = [file.parent for file in self._components() if _is_ours(read_text(file))]
        named: dict[str, Path] = {}
        for folder in ours:
            other = named.setdefault(folder.name, folder)
            if other != folder:
                raise DeclarationError(
                    f"{other} and {folder} declare two jobs of one name, and one set of tables.",
                    "Rename one of the folders.",
                )
        return {name: Job.load(folder) for name, folder in named.items()}

    def other_components(self) -> list[Path]:
        """The `defs.yaml` of other Dagster components, which a deployment may hold beside ours.

        Raises:
            DeclarationError: A file cannot be read.
        """
        return [file for file in self._components() if not _is_ours(read_text(file))]

    def _components(self) -> list[Path]:
        return sorted((self.root / "assets").glob("**/defs.yaml"))

    def job(self, name: str) -> Job:
        """The job of that name.

        Raises:
            DeclarationError: There is no such job, or a declaration is wrong.
        """
        jobs = self.jobs()
        if name not in jobs:
            for file in (self.root / "assets").glob(f"**/{name}/defs.yaml"):
                content: Any = read_yaml(file)
                kind = (
                    cast("dict[str, Any]", content).get("type")
                    if isinstance(content, dict)
                    else None
                )
                raise DeclarationError(
                    f"{file}:{line_of(file, ('type',))}: type is {kind!r}, which is no batch job.",
                    f"Write type: acdc_dagster.{_COMPONENT}.",
                )
            raise DeclarationError(
                f"There is no job {name!r} in {self.root / 'assets'}.",
                f"Choose one of: {', '.join(jobs) or '(none declared)'}.",
            )
        return jobs[name]

    def model(self, name: str) -> Model:
        """The model of that name, once its folder is seen to hold what a job needs.

        A name of an adapter stands for its base model with the adapter.

        Raises:
            ModelError: The name is unknown, or the folder or one of its files is missing.
        """
        declared_in = f"{self.root / 'resources' / f'{self.env}.yaml'}"
        for base, place in self.environment.models.items():
            if name != base and name not in place.loras:
                continue
            model = found_model(base, Path(self.resolve(place.path)), place, declared_in)
            if (drafter := place.drafter) is not None:
                path = None if drafter.path is None else self.resolve(drafter.path)
                model = replace(model, drafter=drafter.model_copy(update={"path": path}))
            if name == base:
                return model
            return adapted(model, name, Path(self.resolve(place.loras[name])), declared_in)
        raise ModelError(
            f"The model {name!r} is not declared in {declared_in}.",
            f"Choose one of: {', '.join(sorted(self.environment.model_names))}; or declare it.",
        )


def _is_ours(text: str) -> bool:
    """Whether a `defs.yaml` declares a job of ours, though it may misspell so."""
    if not text.strip():
        return True  # of nothing else either, and Dagster would refuse it without its name
    types = (match.rpartition(".")[2] for match in _TYPE.findall(text))
    return _COMPONENT in text or bool(difflib.get_close_matches(_COMPONENT, types, cutoff=0.8))
