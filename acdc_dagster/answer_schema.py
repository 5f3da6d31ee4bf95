"""The JSON schema of a job's answers, and the columns of `outputs` that it makes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
from pydantic import BaseModel

from acdc_dagster.declared import line_of, read_json, read_yaml
from acdc_dagster.errors import DeclarationError
from acdc_dagster.imported import REFERENCE, imported
from acdc_dagster.schemas import SCHEMAS

# Before the name of a property that is a column of ours.
_PREFIX = "answer_"
# Column names of a Delta table ignore case.
_OURS = {name.lower() for name in SCHEMAS["outputs"]}


@dataclass(frozen=True)
class AnswerColumn:
    """A property of the answer, as a column of `outputs`.

    Attributes:
        of: The property.
        name: The column: the property's name, with `answer_` before it if it is a column of ours.
        kind: Its JSON type: string, integer, number, boolean, or json for the rest.
        few_values: The values are few and known: an enum of text, or a boolean.
        description: What the schema says of the property, and which it is if the names differ.
    """

    of: str
    name: str
    kind: str
    few_values: bool
    description: str | None


def answer_columns(schema: Mapping[str, Any]) -> list[AnswerColumn]:
    """The columns that a schema's properties make, in their order."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    return [_column(name, _plain(said, definitions)) for name, said in properties.items()]


def _plain(declared: object, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A property's schema with what pydantic writes for enums and optional values put plainly."""
    if not isinstance(declared, dict):
        return {}
    schema = cast("dict[str, Any]", declared)
    of = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found: object = definitions.get(of)
    either: list[Any] = [one for one in schema.get("anyOf", []) if one != {"type": "null"}]
    if found is None and len(either) == 1:
        found = _plain(either[0], definitions)
    return {**cast("dict[str, Any]", found), **schema} if isinstance(found, dict) else schema


def _column(of: str, schema: dict[str, Any]) -> AnswerColumn:
    name = f"{_PREFIX}{of}" if of.lower() in _OURS else of
    kind = _kind(schema)
    said = [] if name == of else [f"The property {of} of the answer."]
    if schema.get("description") is not None:
        said.append(str(schema["description"]))
    few = kind == "boolean" or (kind == "string" and "enum" in schema)
    return AnswerColumn(of, name, kind, few, " ".join(said) or None)


def _kind(schema: dict[str, Any]) -> str:
    kind: Any = schema.get("type")
    if isinstance(kind, list):  # a value that may be null has the column of its other type
        others = [name for name in cast("list[Any]", kind) if name != "null"]
        kind = others[0] if len(others) == 1 else None
    if kind is None and "enum" in schema:
        values = cast("list[Any]", schema["enum"])
        kind = "string" if all(isinstance(value, str) for value in values) else None
    return kind if kind in ("string", "integer", "number", "boolean") else "json"


def read_answer_schema(
    folder: Path, declared: str | dict[str, Any] | None
) -> dict[str, Any] | None:
    """The schema that a job in `folder` declares: inline, in a file there, or a pydantic model.

    Raises:
        DeclarationError: The file or model is missing, or no JSON schema of an object whose
            properties can be columns.
    """
    if declared is None:
        return None
    schema: Any = declared
    if isinstance(declared, str) and REFERENCE.match(declared):
        where = f"{folder / 'defs.yaml'}: {declared}"
        schema = _of_model(declared, where, folder)
    elif isinstance(declared, str):
        where = str(folder / declared)
        file = folder / declared
        schema = read_json(file) if file.suffix == ".json" else read_yaml(file)
    else:
        file = folder / "defs.yaml"
        where = f"{file}:{line_of(file, ('attributes', 'answer_schema'))}"
    try:
        jsonschema_rs.validator_for(schema, offline=True)
    except ValueError as error:  # the library's ValidationError is one
        reason = " ".join(str(error).split())[:300]
        raise DeclarationError(
            f"{where}: answer_schema is no JSON schema: {reason}", "Correct the schema."
        ) from error
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
        raise DeclarationError(
            f"{where}: the answer_schema must have type: object.",
            "Wrap the answer in an object; its properties become columns of outputs.",
        )
    columns = answer_columns(cast("dict[str, Any]", schema))
    lower = [column.name.lower() for column in columns]
    clashing = [column.of for column in columns if lower.count(column.name.lower()) > 1]
    if clashing:
        raise DeclarationError(
            f"{where}: answer_schema has the properties {', '.join(sorted(clashing))}, which "
            "would be one column: names of columns ignore case, and the name of a column of ours "
            f"gets {_PREFIX} before it.",
            "Rename these properties.",
        )
    return cast("dict[str, Any]", schema)


def _of_model(reference: str, where: str, folder: Path) -> dict[str, Any]:
    model: Any = imported(reference, where, folder)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise DeclarationError(
            f"{where} is no pydantic model.", "Name a class that inherits pydantic.BaseModel."
        )
    return model.model_json_schema()
