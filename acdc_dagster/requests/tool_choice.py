"""A tool call that a body forces: the answer is then JSON of a schema, as `vllm serve` makes it."""

from typing import Any, Literal, cast

from msgspec import Struct

from acdc_dagster.requests.message import Tool
from acdc_dagster.requests.refused import Refused
from acdc_dagster.requests.sampling import Asked


class FunctionName(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Which function to call."""

    name: str


class NamedTool(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The tool that the answer has to call."""

    function: FunctionName
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def check_tool_choice(
    choice: ToolChoice | None, tools: list[Tool] | None, parallel: bool | None, body: Asked
) -> None:
    """See that the calls that a body asks for can be made.

    Raises:
        Refused: Names what is missing or stands in the way.
    """
    if choice not in (None, "none") and tools is None:
        raise Refused("missing_required_parameter", "body: tool_choice stands without tools.")
    if call_schema(choice, tools, parallel) is None:
        if tools is not None and parallel is False and choice != "none":
            raise Refused(
                "unsupported_parameter",
                "body: parallel_tool_calls is false, and nothing parses calls that are not forced.",
            )
        return
    wanted = body.response_format
    if body.structured_outputs is not None or (wanted is not None and wanted.type != "text"):
        raise Refused(
            "invalid_value",
            "body: tool_choice says what the answer is, and so does response_format or "
            "structured_outputs; give one.",
        )


def call_schema(
    choice: ToolChoice | None, tools: list[Tool] | None, parallel: bool | None
) -> dict[str, Any] | None:
    """The JSON schema of the answer if a call is forced.

    That of a named function is of its arguments; that of any calls is a list of objects with `name`
    and `parameters`.

    Raises:
        Refused: The function is none of the tools, or two tools define one name differently.
    """
    if isinstance(choice, NamedTool):
        for tool in tools or ():
            if tool.function.name == choice.function.name:
                return _parameters(tool)
        raise Refused(
            "invalid_value", f"body: tool_choice names {choice.function.name!r}, none of tools."
        )
    if choice != "required" or tools is None:
        return None
    calls: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for tool in tools:
        parameters = _parameters(tool)
        shared: Any = parameters.get("$defs", {})
        if not isinstance(shared, dict):
            raise Refused("invalid_value", f"body: $defs of {tool.function.name} is no object.")
        for name, definition in cast("dict[str, Any]", shared).items():
            if definitions.setdefault(name, definition) != definition:
                raise Refused(
                    "invalid_value", f"body: the tools define {name!r} of $defs differently."
                )
        calls.append(_call(tool.function.name, parameters))
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "anyOf": calls},
    }
    if parallel is False:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def _call(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in parameters.items() if key != "$defs"}
    return {
        "properties": {"name": {"type": "string", "enum": [name]}, "parameters": own},
        "required": ["name", "parameters"],
    }


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or {"type": "object", "properties": {}}
