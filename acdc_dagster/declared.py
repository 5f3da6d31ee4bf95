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


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        DeclarationError: The file is missing, unreadable or not YAML.
    """
    try:
        return yaml.safe_load(_text(path))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date like 2026-13-01
        raise DeclarationError(f"{path} is not valid YAML: {error}", "Correct the line.") from error


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        DeclarationError: The file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise DeclarationError(f"{path} is not valid JSON: {error}", "Correct the line.") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DeclarationError(
            f"{path} does not exist.", "Create it, or correct its name."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} cannot be read: {error}", "Mend the file.") from error


def declaration(model: type[M], path: Path, within: Location = ()) -> M:
    """Read `path` and check what stands under the keys `within` against `model`.

    Raises:
        DeclarationError: Each fault as `file:line: field: what is wrong`.
    """
    content = read_yaml(path)
    for key in within:
        content = cast("dict[Any, Any]", content).get(key) if isinstance(content, dict) else None
    try:
        return model.model_validate({} if content is None else content)
    except ValidationError as error:
        faults = [
            f"{path}:{line_of(path, (*within, *fault['loc']))}: "
            f"{'.'.join(map(str, (*within, *fault['loc']))) or 'file'}: {fault['msg']}"
            for fault in error.errors()
        ]
        raise DeclarationError("\n".join(faults), "Correct the fields named above.") from None


def line_of(path: Path, location: Location) -> int:
    """The line, from 1, of the deepest part of `location` that the file has."""
    node: Any = cast("Any", yaml).compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    line = 1
    for key in location:
        if isinstance(node, yaml.MappingNode):
            pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
            found = next((pair for pair in pairs if pair[0].value == key), None)
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
