"""Plain answer schemas as msgspec types, which read and check thousands of answers in one call.

A JSON schema can say more than a type can. So only schemas whose every keyword is known here have
a type. What the type takes is valid against the schema; what it does not take may still be, and is
for the validator to judge.
"""

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

_ANNOTATIONS = {"title", "description", "examples", "default", "$schema", "$comment"}
_BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
}
_KEYWORDS: dict[str, dict[str, str]] = {
    "string": {"minLength": "min_length", "maxLength": "max_length"},
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "boolean": {},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
}
_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool}
_INT64 = 2**63


def answer_type(schema: dict[str, Any]) -> type[msgspec.Struct] | None:
    """A Struct with the fields f0, f1, … for the schema's properties, in their order.

    A property that is not required and not there is None.

    Returns:
        None if the schema says something that no type can.
    """
    known = {"type", "properties", "required", "additionalProperties", *_ANNOTATIONS}
    properties: dict[str, Any] = schema.get("properties", {})
    required: list[str] = schema.get("required", [])
    extra: object = schema.get("additionalProperties", True)
    if schema.keys() - known or set(required) - properties.keys() or not isinstance(extra, bool):
        return None
    fields: list[Any] = []
    for number, (name, declared) in enumerate(properties.items()):
        kind = _type_of(declared)
        if kind is None:
            return None
        default = msgspec.field(name=name) if name in required else _absent(name)
        fields.append((f"f{number}", kind, default))
    return msgspec.defstruct("Answer", fields, forbid_unknown_fields=not extra, kw_only=True)


def _absent(name: str) -> Any:
    return msgspec.field(default=None, name=name)


def _type_of(declared: object) -> Any:
    """The type of one property; None if there is none."""
    if not isinstance(declared, dict):
        return None
    schema = {
        key: value
        for key, value in cast("dict[str, Any]", declared).items()
        if key not in _ANNOTATIONS
    }
    kind, enum = schema.pop("type", None), schema.pop("enum", None)
    nullable = isinstance(kind, list)
    if isinstance(kind, list):
        others = [one for one in cast("list[str]", kind) if one != "null"]
        if len(others) != 1 or len(cast("list[str]", kind)) != 2:
            return None
        kind = others[0]
    if enum is not None:
        texts = cast("list[Any]", enum)
        if kind not in (None, "string") or nullable or schema or not _are_texts(texts):
            return None
        return Literal[tuple(texts)]  # pyright: ignore[reportInvalidTypeForm]
    items = schema.pop("items", None) if kind == "array" else None
    words = _KEYWORDS.get(kind) if isinstance(kind, str) else None
    if words is None or schema.keys() - words.keys():
        return None
    base = _TYPES.get(str(kind))
    if kind == "array":
        inner = _type_of(items)
        if inner is None:
            return None
        base = list[inner]
    limits: dict[str, Any] = {words[key]: value for key, value in schema.items()}
    if kind == "integer":  # what its column holds; of two bounds on a side a Meta takes one
        if not all(type(value) is int and abs(value) < _INT64 for value in limits.values()):
            return None
        limits = {
            **({} if "gt" in limits else {"ge": -_INT64}),
            **({} if "lt" in limits else {"le": _INT64 - 1}),
            **limits,
        }
    if {"ge", "gt"} <= limits.keys() or {"le", "lt"} <= limits.keys():
        return None
    annotated: Any = Annotated[base, Meta(**limits)] if limits else base
    return annotated | None if nullable else annotated


def _are_texts(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)
