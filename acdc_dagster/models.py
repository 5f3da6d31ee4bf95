"""Models: where an environment has them, and what is told of one from its folder."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, model_validator

from acdc_dagster.declared import Declared
from acdc_dagster.errors import ModelError
from acdc_dagster.job import version_of
from acdc_dagster.speculation import Method


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


def found_model(name: str, path: Path, place: ModelPlace | None, declared_in: str) -> Model:
    """The model in folder `path`. Raises ModelError if the folder lacks what a job needs."""
    _check_holds(path, ("config.json", "tokenizer.json"), "model", name, declared_in)
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
    needed = ("adapter_config.json", "adapter_model.safetensors")
    _check_holds(adapter, needed, "adapter", name, declared_in)
    revision = version_of([base.name, base.revision, _fingerprint(adapter)])
    return replace(base, name=name, revision=revision, adapter=adapter)


def _check_holds(
    folder: Path, files: Sequence[str], kind: str, name: str, declared_in: str
) -> None:
    for needed in files:
        if not (folder / needed).is_file():
            raise ModelError(
                f"The {kind} {name!r} has no {needed} in {folder}"
                f"{'' if folder.is_dir() else ', which is no folder'}.",
                f"Put the {kind} there, or correct its path in {declared_in}.",
            )


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
