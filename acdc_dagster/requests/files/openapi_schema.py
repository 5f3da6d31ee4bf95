"""The schema language of Gemini, a part of OpenAPI 3.0, as plain JSON Schema.

The fields are those of https://ai.google.dev/api/caching#Schema.
"""

from typing import Annotated, Any, cast

from msgspec import Meta, Struct
from msgspec.structs import fields

from acdc_dagster.requests.refused import Refused

_COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}
# They say how a value is stored or repeat what `enum` says, and are no formats of JSON Schema.
_NO_FORMATS = {"enum", "int32", "int64", "float", "double"}

# As JSON of a protocol buffer, an int64 may stand in quotes; it has 19 digits at most.
_Count = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern="^[0-9]+$", max_length=19)]


class OpenApiSchema(
    Struct, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True, rename="camel"
):
    """What a value must look like."""

    type: str | None = None
    format: str | None = None
    title: str | None = None
    description: str | None = None
    nullable: bool | None = None
    enum: list[str] | None = None
    default: Any = None
    items: "OpenApiSchema | None" = None
    prefix_items: "list[OpenApiSchema] | None" = None
    properties: "dict[str, OpenApiSchema] | None" = None
    property_ordering: list[str] | None = None
    additional_properties: "bool | OpenApiSchema | None" = None
    required: list[str] | None = None
    any_of: "list[OpenApiSchema] | None" = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    pattern: str | None = None
    min_items: _Count | None = None
    max_items: _Count | None = None
    min_length: _Count | None = None
    max_length: _Count | None = None
    min_properties: _Count | None = None
    max_properties: _Count | None = None


def json_schema(schema: OpenApiSchema, at: str) -> dict[str, Any]:
    """The same as JSON Schema, the properties in the order of `propertyOrdering`.

    Args:
        schema: The schema.
        at: Where it stands, for a message.

    Raises:
        Refused: A part of it has no counterpart.
    """
    plain = {
        field.encode_name: _plain(getattr(schema, field.name), f"{at}.{field.encode_name}")
        for field in fields(schema)
        if getattr(schema, field.name) is not None
    }
    plain |= {name: int(plain[name]) for name in _COUNTS & plain.keys()}
    if schema.type is not None:
        plain["type"] = schema.type.lower()
        if plain["type"] not in _TYPES:
            raise Refused("invalid_value", f"{at}.type is {schema.type!r}, which is no type.")
    if schema.enum is not None and plain.get("type", "string") != "string":
        raise Refused("unsupported_parameter", f"{at}.enum is supported for strings only.")
    if schema.format in _NO_FORMATS:
        del plain["format"]
    ordering = plain.pop("propertyOrdering", None)
    if ordering and schema.properties:
        rank = {name: place for place, name in enumerate(ordering)}
        names = sorted(plain["properties"], key=lambda name: rank.get(name, len(rank)))
        plain["properties"] = {name: plain["properties"][name] for name in names}
    if plain.pop("nullable", False):
        return {"anyOf": [plain, {"type": "null"}]}
    return plain


def _plain(value: Any, at: str) -> Any:
    match value:
        case OpenApiSchema():
            return json_schema(value, at)
        case list():
            items = cast("list[Any]", value)
            return [_plain(item, f"{at}[{place}]") for place, item in enumerate(items)]
        case dict():
            entries = cast("dict[str, Any]", value)
            return {name: _plain(entry, f"{at}.{name}") for name, entry in entries.items()}
        case _:
            return value
