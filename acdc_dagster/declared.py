"""YAML that a user writes, checked so that a mistake names its file, line and allowed values.

Jobs (`assets/<job>/defs.yaml`) and environments (`resources/<env>.yaml`) both go through here.
"""

import difflib
import json
from pathlib import Path
from typing import Any, LiteralString, TypeVar, cast

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from yaml.reader import ReaderError

from acdc_dagster.errors import DeclarationError

Location = tuple[int | str, ...]
M = TypeVar("M", bound="Declared")


class Declared(BaseModel):
    """Base of everything declared in YAML: frozen, and an unknown field names the known ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_allowed_fields(cls, data: Any, handler: ModelWrapValidatorHandler[M]) -> M:
        try:
            return handler(data)
        except ValidationError as error:
            raise ValidationError.from_exception_data(
                cls.__name__, [cls._explained(line) for line in error.errors()]
            ) from None

    @classmethod
    def _explained(cls, line: Any) -> InitErrorDetails:
        location: Location = line["loc"]
        message: str = line["msg"]
        if line["type"] == "extra_forbidden" and len(location) == 1:
            near = difflib.get_close_matches(str(location[0]), cls.model_fields, n=1)
            guess = f" (did you mean {near[0]}?)" if near else ""
            message = f"unknown field{guess}; allowed here: {', '.join(cls.model_fields)}"
        return InitErrorDetails(
            # A template without placeholders: pydantic leaves text without a context as it is.
            type=PydanticCustomError(line["type"], cast("LiteralString", message)),
            loc=location,
            input=line["input"],
        )


class _Loader(yaml.SafeLoader):
    """A SafeLoader whose faults name the file, and that takes no key twice."""

    def __init__(self, text: str, path: Path) -> None:
        super().__init__(text)
        self.name = str(path)

    # YAML forbids it, and yet the last one would silently win. Seen before `<<` merges mappings,
    # whose keys may be given again.
    def compose_mapping_node(self, anchor: Any) -> Any:
        node: Any = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if (key.tag, key.value) in first:
                raise DeclarationError(
                    f"{self.name}:{line}: the key {key.value!r} stands twice, first in line "
                    f"{first[key.tag, key.value]}.",
                    "Keep one of the two.",
                )
            first[key.tag, key.value] = line
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return cast("Any", super()).construct_object(node, deep)
        except ValueError as error:  # a date like 2026-13-01
            raise DeclarationError(
                f"{self.name}:{node.start_mark.line + 1}: {node.value!r}: {error}",
                "Correct the value, or quote it if it is a text.",
            ) from error


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        DeclarationError: The file is missing, unreadable or not YAML, or has a key twice.
    """
    text = read_text(path)
    try:
        return _Loader(text, path).get_single_data()
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DeclarationError(
            f"{path}:{line}: YAML may not hold the character {chr(error.character)!r}.",
            "Take it out, or write it as an escape in double quotes.",
        ) from error
    except yaml.YAMLError as error:
        raise DeclarationError(f"{path} is not valid YAML: {error}", "Correct the line.") from error
    except RecursionError:
        raise DeclarationError(f"{path} is nested too deeply.", "Nest less.") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        DeclarationError: The file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise DeclarationError(f"{path} is not valid JSON: {error}", "Correct the line.") from error


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        DeclarationError: The file is missing, no file, or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DeclarationError(
            f"{path} does not exist.", "Create it, or correct its name."
        ) from None
    except UnicodeDecodeError as error:
        raise DeclarationError(
            f"{path} cannot be read: {error}", "Save the file as UTF-8."
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DeclarationError(f"{path} cannot be read: {error}", "Mend the file.") from error


def declaration(model: type[M], path: Path) -> M:
    """Read `path` and check it against `model`.

    Raises:
        DeclarationError: Each fault as `file:line: field: what is wrong`.
    """
    content = read_yaml(path)
    try:
        return model.model_validate({} if content is None else content)
    except ValidationError as error:
        faults = [
            f"{path}:{line_of(path, fault['loc'])}: "
            f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}"
            for fault in error.errors()
        ]
        raise DeclarationError("\n".join(faults), "Correct the fields named above.") from None


def line_of(path: Path, location: Location) -> int:
    """The line, from 1, of the deepest part of `location` that the file has."""
    node: Any = _Loader(read_text(path), path).get_single_node()
    line = 1
    for key in location:
        if isinstance(node, yaml.MappingNode):
            pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
            found = next((pair for pair in pairs if _is_key(pair[0], key)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            items = cast("list[yaml.Node]", node.value)
            if key >= len(items):
                break
            line, node = items[key].start_mark.line + 1, items[key]
        else:
            break
    return line


def _is_key(node: yaml.Node, key: int | str) -> bool:
    """Whether a key of the file is the one that pydantic names: `yes` is told as 1, `~` as None."""
    if not isinstance(node, yaml.ScalarNode):
        return False
    built = cast("Any", yaml.SafeLoader("")).construct_object(node)
    return key in (node.value, built, str(built))
