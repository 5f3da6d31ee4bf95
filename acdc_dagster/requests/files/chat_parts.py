"""Pieces of a chat body that the converters of other batch formats have in common."""

from collections.abc import Sequence
from typing import Any

import msgspec


def content_of(texts: Sequence[str]) -> str | list[dict[str, str]]:
    """A message's content: one text as it is, several as parts."""
    if len(texts) == 1:
        return texts[0]
    return [{"type": "text", "text": text} for text in texts]


def function_call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """An entry of `tool_calls`; `arguments` become JSON text."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": msgspec.json.encode(arguments).decode()},
    }


def json_answer(schema: dict[str, Any]) -> dict[str, Any]:
    """The response_format that holds an answer to a JSON schema."""
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


def without_none(**fields: Any) -> dict[str, Any]:
    """The fields that have a value, in their order."""
    return {name: value for name, value in fields.items() if value is not None}
