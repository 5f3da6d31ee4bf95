"""Where jobs run: a deployment folder with `assets/` and `resources/<env>.yaml`.

The repository itself is a deployment. `ACDC_DEPLOYMENT` names another folder and `ACDC_ENV` another
environment than `local`. Relative paths in the YAML are relative to the deployment folder, so that
a run does not depend on where it was started.
"""

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, field_validator, model_validator

from acdc_dagster.declared import Declared, declaration, line_of, read_yaml
from acdc_dagster.engine import Engine
from acdc_dagster.errors import DeclarationError, ModelError
from acdc_dagster.gpus import Gpu, Pool, known_gpus, parse_pool
from acdc_dagster.job import Job, version_of
from acdc_dagster.prices import Prices
from acdc_dagster.speculation import Method

_COMPONENT = "BatchInferenceComponent"


class ModelDrafter(Declared):
    """A smaller model or a head that drafts tokens for a model, or a look-up in the text."""

    method: Method
    path: str | None = Field(default=None, description="Folder; none for a look-up.")

    @model_validator(mode="after")
    def _a_model_has_a_path(self) -> Self:
        if (self.method in ("ngram", "suffix")) != (self.path is None):
            raise ValueError(f"path: {self.method} " + ("needs none" if self.path else "needs one"))
        return self


class ModelPlace(Declared):
    """A model and where the workers find it."""

    path: str = Field(description="Folder with config.json, tokenizer.json and the weights.")
    revision: str | None = Field(
        default=None, description="Told from the files if not given; part of the request hash."
    )
    max_model_len: int | None = Field(
        default=None, ge=1, description="Context limit in tokens, if below the model's own."
    )
    reasoning_parser: str | None = Field(
        default=None,
        min_length=1,
        description="What tells a chat's reasoning from its answer, by vLLM's name.",
    )
    drafter: ModelDrafter | None = Field(
        default=None, description="What can draft for it, for plans that speculate."
    )
    loras: dict[str, str] = Field(
        default_factory=dict,
        description="Folders of LoRA adapters by the names under which jobs ask for them.",
    )


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
class Model:
    """A model that is there.

    Attributes:
        context_length: Most tokens of prompt and answer together.
        revision: Names the weights and tokenizer; results of different revisions never mix.
        reasoning_parser: vLLM's name of what tells reasoning from the answer, if the model reasons.
        drafter: What can draft for it, its path resolved.
        adapter: Folder of the LoRA adapter that the name stands for; its files count in `revision`.
    """

    name: str
    path: Path
    revision: str
    context_length: int
    reasoning_parser: str | None = None
    adapter: Path | None = None
    drafter: ModelDrafter | None = None


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
            DeclarationError: `resources/<env>.yaml` is missing or wrong.
        """
        root = (root or Path(os.environ.get("ACDC_DEPLOYMENT", "."))).resolve()
        env = env or os.environ.get("ACDC_ENV", "local")
        path = root / "resources" / f"{env}.yaml"
        if not path.is_file():
            others = sorted(file.stem for file in (root / "resources").glob("*.yaml"))
            raise DeclarationError(
                f"{path} does not exist.",
                f"Set ACDC_ENV to one of: {', '.join(others)}."
                if others
                else "Start in a deployment folder, or set ACDC_DEPLOYMENT to one.",
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
        files = sorted((self.root / "assets").glob("**/defs.yaml"))
        # A deployment may hold other Dagster components beside ours.
        ours = [file.parent for file in files if _COMPONENT in file.read_text(encoding="utf-8")]
        named: dict[str, Path] = {}
        for folder in ours:
            other = named.setdefault(folder.name, folder)
            if other != folder:
                raise DeclarationError(
                    f"{other} and {folder} declare two jobs of one name, and one set of tables.",
                    "Rename one of the folders.",
                )
        return {name: Job.load(folder) for name, folder in named.items()}

    def job(self, name: str) -> Job:
        """The job of that name.

        Raises:
            DeclarationError: There is no such job, or a declaration is wrong.
        """
        jobs = self.jobs()
        if name not in jobs:
            for file in (self.root / "assets").glob(f"**/{name}/defs.yaml"):
                content: Any = read_yaml(file)
                kind: Any = cast("dict[str, Any]", content).get("type") if content else None
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
            if place.drafter is not None and place.drafter.path is not None:
                path = self.resolve(place.drafter.path)
                model = replace(model, drafter=place.drafter.model_copy(update={"path": path}))
            elif place.drafter is not None:
                model = replace(model, drafter=place.drafter)
            if name == base:
                return model
            return adapted(model, name, Path(self.resolve(place.loras[name])), declared_in)
        raise ModelError(
            f"The model {name!r} is not declared in {declared_in}.",
            f"Choose one of: {', '.join(sorted(self.environment.model_names))}; or declare it.",
        )


def found_model(name: str, path: Path, place: ModelPlace | None, declared_in: str) -> Model:
    """The model in folder `path`. Raises ModelError if the folder lacks what a job needs."""
    for needed in ("config.json", "tokenizer.json"):
        if not (path / needed).is_file():
            raise ModelError(
                f"The model {name!r} has no {needed} in {path}"
                f"{'' if path.is_dir() else ', which is no folder'}.",
                f"Put the model there, or correct its path in {declared_in}.",
            )
    limit = _own_context_length(path)
    if place is not None and place.max_model_len is not None:
        limit = min(limit, place.max_model_len)
    revision = place.revision if place is not None and place.revision else _fingerprint(path)
    return Model(name, path, revision, limit, place.reasoning_parser if place else None)


def adapted(base: Model, name: str, adapter: Path, declared_in: str) -> Model:
    """A base model with a LoRA adapter, by the adapter's name.

    Raises:
        ModelError: The adapter's folder lacks its configuration or its weights.
    """
    for needed in ("adapter_config.json", "adapter_model.safetensors"):
        if not (adapter / needed).is_file():
            raise ModelError(
                f"The adapter {name!r} has no {needed} in {adapter}"
                f"{'' if adapter.is_dir() else ', which is no folder'}.",
                f"Put the adapter there, or correct its path in {declared_in}.",
            )
    revision = version_of([base.name, base.revision, _fingerprint(adapter)])
    return replace(base, name=name, revision=revision, adapter=adapter)


def _own_context_length(path: Path) -> int:
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        text_config = cast("dict[str, Any]", config.get("text_config", config))
        return int(text_config.get("max_position_embeddings", 2**31 - 1))
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(
            f"{path / 'config.json'} is no model's configuration: {error}", "Mend or replace it."
        ) from error


def _fingerprint(path: Path) -> str:
    """Small files by content, weights by size and samples: gigabytes are not read for an id."""
    parts: list[object] = []
    for file in sorted(path.iterdir()):
        if file.suffix in (".json", ".jinja"):
            parts.append([file.name, file.read_text(encoding="utf-8", errors="replace")])
        elif file.suffix in (".safetensors", ".bin", ".gguf", ".model"):
            parts.append([file.name, file.stat().st_size, _samples(file)])
    return version_of(parts)


def _samples(file: Path, count: int = 64, size: int = 4096) -> str:
    """A digest of blocks spread evenly over a file; fine-tuned weights differ everywhere."""
    digest, length = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as stream:
        for number in range(count):
            stream.seek(max(length - size, 0) * number // (count - 1))
            digest.update(stream.read(size))
    return digest.hexdigest()
