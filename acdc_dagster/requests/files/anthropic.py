"""The params of an Anthropic Message Batches line as the body of a chat request.

The fields and their meaning are those of https://platform.claude.com/docs/en/api/messages. A field
that is not named here would change the answer and cannot be carried over, so it rejects its row.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from acdc_dagster.requests.files.chat_parts import (
    content_of,
    function_call,
    json_answer,
    without_none,
)
from acdc_dagster.requests.refused import Refused, refusal


class _Strict(Struct, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    # cache_control says what to keep for the next request; every prefix is kept here.
    pass


class _Text(_Strict, frozen=True, gc=False, tag_field="type", tag="text"):
    text: str
    cache_control: Any = None
    citations: None = None


class _ToolUse(_Strict, frozen=True, gc=False, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Any = None


class _ToolResult(_Strict, frozen=True, gc=False, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[_Text] = ""
    is_error: Literal[False] | None = None
    cache_control: Any = None


_Block = _Text | _ToolUse | _ToolResult


class _Message(_Strict, frozen=True, gc=False):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[_Block], Meta(min_length=1)]


class _Tool(_Strict, frozen=True, gc=False):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    cache_control: Any = None


class _ToolChoice(_Strict, frozen=True, gc=False):
    type: Literal["auto", "none"]
    disable_parallel_tool_use: Literal[False] | None = None


class _Format(_Strict, frozen=True, gc=False):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _OutputConfig(_Strict, frozen=True, gc=False):
    format: _Format | None = None


class _Params(_Strict, frozen=True, gc=False):
    model: str
    max_tokens: Annotated[int, Meta(ge=1)]
    messages: Annotated[list[_Message], Meta(min_length=1)]
    system: str | list[_Text] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    stop_sequences: list[Annotated[str, Meta(min_length=1)]] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    output_config: _OutputConfig | None = None
    stream: Literal[False] | None = None
    # Bookkeeping of the API that changes no answer.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: Any = None


_params = msgspec.json.Decoder(_Params)
# A block with the place where it stands.
_Placed = tuple[str, _Block]


def body_of_params(params: bytes, model: str) -> dict[str, Any]:
    """The chat body for `model` that asks what `params` asks of another one.

    Raises:
        Refused: Names the field that is wrong or cannot be carried over.
    """
    try:
        given = _params.decode(params)
    except msgspec.MsgspecError as error:
        raise refusal("params", error) from None
    messages: list[dict[str, Any]] = []
    if given.system:
        messages.append({"role": "system", "content": _content(given.system)})
    for role, blocks in _turns(given.messages):
        messages += _of_user(blocks) if role == "user" else [_of_assistant(blocks)]
    continues = given.messages[-1].role == "assistant"
    return without_none(
        model=model,
        messages=messages,
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        stop=given.stop_sequences or None,
        tools=[_tool(tool) for tool in given.tools or ()] or None,
        tool_choice=given.tool_choice and given.tool_choice.type,
        response_format=_response_format(given.output_config),
        metadata=given.metadata,
        service_tier=given.service_tier,
        **(_continued(messages[-1]) if continues else {}),
    )


def _turns(messages: list[_Message]) -> Iterator[tuple[str, list[_Placed]]]:
    """Roles and blocks; messages of one role in a row are one turn, as they are for the API."""
    placed = [(f"params: messages[{number}]", message) for number, message in enumerate(messages)]
    for role, turn in groupby(placed, key=lambda message: message[1].role):
        yield role, [block for at, message in turn for block in _blocks(at, message.content)]


def _blocks(at: str, content: str | list[_Block]) -> list[_Placed]:
    if isinstance(content, str):
        return [(f"{at}.content", _Text(text=content))]
    return [(f"{at}.content[{number}]", block) for number, block in enumerate(content)]


def _of_user(blocks: list[_Placed]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for at, block in blocks:
        match block:
            case _Text():
                texts.append(block.text)
            case _ToolResult() if not texts:
                results.append(
                    {
                        "role": "tool",
                        "tool_call_id": block.tool_use_id,
                        "content": _content(block.content),
                    }
                )
            case _ToolResult():
                raise Refused(
                    "invalid_value", f"{at} is a tool_result after text; results come first."
                )
            case _ToolUse():
                raise Refused("invalid_value", f"{at} is a tool_use of a user.")
    return [*results, {"role": "user", "content": content_of(texts)}] if texts else results


def _of_assistant(blocks: list[_Placed]) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    for at, block in blocks:
        match block:
            case _Text() if not calls:
                texts.append(block.text)
            case _Text():
                raise Refused(
                    "unsupported_content",
                    f"{at} is text after a tool_use, and a chat has the text of a message first.",
                )
            case _ToolUse():
                calls.append(function_call(block.id, block.name, block.input))
            case _ToolResult():
                raise Refused("invalid_value", f"{at} is a tool_result of an assistant.")
    return without_none(
        role="assistant",
        content=content_of(texts) if texts else None,
        tool_calls=calls or None,
    )


def _continued(message: dict[str, Any]) -> dict[str, bool]:
    """The settings with which the model goes on where the assistant's last turn ends."""
    if "tool_calls" in message or not message["content"]:
        raise Refused(
            "unsupported_content",
            "params: messages ends with an assistant's turn that is no text to be continued.",
        )
    return {"add_generation_prompt": False, "continue_final_message": True}


def _content(content: str | list[_Text]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    return content_of([block.text for block in content])


def _tool(tool: _Tool) -> dict[str, Any]:
    function = without_none(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return {"type": "function", "function": function}


def _response_format(config: _OutputConfig | None) -> dict[str, Any] | None:
    if config is None or config.format is None:
        return None
    return json_answer(config.format.schema)
