"""Reading a Hugging Face `config.json`: fields under the names that model families give them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from acdc_dagster.errors import ModelError

_MEND = "Take the config.json that the model was published with."


@dataclass(frozen=True)
class Config:
    """The fields that describe the language model, and the file to blame.

    Attributes:
        fields: Of the language model; those of a model that also sees are in its text_config.
        whole: All fields of the file.
        source: How messages name the file.
    """

    fields: Mapping[str, Any]
    whole: Mapping[str, Any]
    source: str

    @staticmethod
    def read(folder: Path) -> "Config":
        """The configuration in `folder/config.json`.

        Raises:
            ModelError: The file is missing or holds no JSON object.
        """
        path = folder / "config.json"
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}", _MEND) from error
        return Config.of(whole, str(path))

    @staticmethod
    def of(whole: Any, source: str) -> "Config":
        """The configuration that the parsed JSON `whole` is. Raises as `read` does."""
        if not isinstance(whole, dict):
            raise ModelError(f"{source} holds no JSON object.", _MEND)
        fields = cast("dict[str, Any]", whole)
        text = fields.get("text_config", fields.get("llm_config"))
        return Config(
            cast("dict[str, Any]", text) if isinstance(text, dict) else fields, fields, source
        )

    def number(self, *names: str) -> int:
        """The first of `names` that is there, a whole number from 1.

        Raises:
            ModelError: None of them is there, or what is there is no such number.
        """
        found = self.optional(*names)
        if found:
            return found
        raise ModelError(
            f"{self.source}: {' or '.join(names)} is missing, so the model's shape is not known.",
            _MEND,
        )

    def optional(self, *names: str) -> int:
        """The first of `names` that is there and not null, a whole number; 0 if none is.

        Raises:
            ModelError: What is there is no whole number from 0.
        """
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ModelError(
                    f"{self.source}: {name} is {value!r}, which is no whole number from 0.", _MEND
                )
            return value
        return 0

    def text(self, *names: str) -> str:
        """The first of `names` that is a string, else the empty string."""
        found = (self.fields.get(name, self.whole.get(name)) for name in names)
        return next((value for value in found if isinstance(value, str)), "")

    def flag(self, name: str, *, default: bool) -> bool:
        """A truth value."""
        value = self.fields.get(name)
        return default if value is None else bool(value)

    def items(self, name: str) -> list[Any]:
        """A list; empty if it is not there."""
        value = self.fields.get(name)
        return cast("list[Any]", value) if isinstance(value, list) else []

    def group(self, name: str) -> Mapping[str, Any]:
        """An object within the configuration; empty if it is not there."""
        value = self.fields.get(name, self.whole.get(name))
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

    def refuse(self, problem: str) -> ModelError:
        """The fault of a model that cannot be described."""
        return ModelError(
            f"{self.source}: {problem}",
            "Run it with the environment's own settings; this model cannot be planned yet.",
        )
