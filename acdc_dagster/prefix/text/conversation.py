"""The messages and tools of a body in the form in which vLLM hands them to a chat template.

A template may write a message or a tool out as JSON, so the order of the fields is part of the
form.
"""

import json
from typing import Any, cast

import msgspec

from acdc_dagster.requests.body import ChatBody
from acdc_dagster.requests.message import Message, TextPart, Tool
from acdc_dagster.requests.refused import Refused


def conversation(
    body: ChatBody, *, parts: bool, developer: bool, image: str = ""
) -> list[dict[str, Any]]:
    """A body's messages.

    Args:
        body: The parsed body.
        parts: The template takes a content as a list of parts; else it is one text.
        developer: The template knows the role `developer`; else such a message is a system
            message, and all system messages are joined to one at the head.
        image: What is written for an image where a content is one text: before it, each in a line.

    Raises:
        Refused: The arguments of an earlier call are JSON that Python cannot hold.
    """
    messages = [_message(message, parts=parts, image=image) for message in body.messages]
    if developer or all(message.role != "developer" for message in body.messages):
        return messages
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
            del message["tools"]
    return _one_system_message(messages)


def tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """A body's tools; a description that is not given is null, a `strict` is left out."""
    if body.tools is None:
        return None
    return [_tool(tool) for tool in body.tools]


def _message(message: Message, *, parts: bool, image: str) -> dict[str, Any]:
    content = _parts(message) if parts else _text(message, image)
    if message.role == "tool":  # what a tool returned is one text for every template
        content = _joined(content)
    given: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        calls: list[dict[str, Any]] = msgspec.to_builtins(message.tool_calls)
        for call in calls:
            call["function"]["arguments"] = _arguments(call["function"]["arguments"])
        given["tool_calls"] = calls
    reasoning = message.reasoning
    if reasoning is None:
        reasoning = message.reasoning_content
    if reasoning is not None:
        given |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if message.tool_call_id is not None:
        given["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        given["name"] = message.name
    if message.role == "developer":
        given["tools"] = None
    return given


def _parts(message: Message) -> list[dict[str, str]]:
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}]
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in message.content or ()
    ]


def _text(message: Message, image: str) -> str:
    images = [image] * len(message.image_urls())
    return "\n".join([*images, *([text] if (text := message.text()) else [])])


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of an earlier call; what is no JSON object counts as none, as in vLLM."""
    try:
        arguments: Any = json.loads(text or "{}")
    except json.JSONDecodeError:
        return {}
    except (RecursionError, ValueError):  # the latter for a number of thousands of digits
        raise Refused(
            "invalid_value",
            "The arguments of an earlier tool call are nested too deeply, or hold a number of too "
            "many digits.",
        ) from None
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}


def _one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [message for message in messages if message["role"] == "system"]
    if system == messages[:1]:
        return messages
    texts = [_joined(message["content"]) for message in system]
    head = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [head, *(message for message in messages if message["role"] != "system")]


def _joined(content: str | list[dict[str, str]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = msgspec.to_builtins(tool.function)
    if function["strict"] is None:
        del function["strict"]
    return {"type": tool.type, "function": function}
