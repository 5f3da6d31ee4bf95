"""The request of a Gemini batch line as the body of a chat request."""

from typing import Any

import msgspec

from acdc_dagster.requests.files.chat_parts import (
    content_of,
    function_call,
    json_answer,
    without_none,
)
from acdc_dagster.requests.files.gemini_request import (
    Content,
    FunctionCall,
    FunctionDeclaration,
    FunctionResponse,
    GenerationConfig,
    Part,
    Request,
    read_request,
)
from acdc_dagster.requests.files.openapi_schema import json_schema
from acdc_dagster.requests.refused import Refused

# What the seed -1 becomes, which is "no seed" to vLLM: a Gemini seed has 32 bits, so this is the
# seed of no other request.
_NAMED_SEED = 2**32 - 1


def body_of_request(request: bytes, model: str) -> dict[str, Any]:
    """The chat body for `model` that asks what `request` asks of a Gemini model.

    Raises:
        Refused: Names the field that is wrong or cannot be carried over.
    """
    given = read_request(request)
    config = given.generation_config
    declarations = [entry for tool in given.tools or () for entry in tool.function_declarations]
    return without_none(
        model=model,
        messages=_messages(given),
        max_tokens=config.max_output_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=_whole(config.top_k),
        stop=config.stop_sequences or None,
        seed=_NAMED_SEED if config.seed == -1 else config.seed,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        tools=[_tool(declared) for declared in declarations] or None,
        tool_choice=given.tool_config and given.tool_config.function_calling_config.mode.lower(),
        response_format=_response_format(config),
        metadata=given.labels,
    )


def _messages(given: Request) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if given.system_instruction is not None and given.system_instruction.parts:
        texts = [part.text for part in given.system_instruction.parts]
        messages.append({"role": "system", "content": content_of(texts)})
    calls = _Calls()
    for number, content in enumerate(given.contents):
        at = f"request: contents[{number}]"
        if content.role == "model":
            messages.append(_of_model(content, at, calls))
        else:
            messages += _of_user(content, at, calls)
    if given.contents[-1].role == "model":
        raise Refused(
            "unsupported_content", "request: contents ends with role model: nothing is asked."
        )
    return messages


class _Calls:
    """Function calls that wait for their responses, which need not name an id."""

    def __init__(self) -> None:
        self._made = 0
        self._open: list[tuple[str, str]] = []

    def begin(self, call: FunctionCall) -> str:
        """The id of a new call."""
        self._made += 1
        # Nine letters and digits: some chat templates take no other ids.
        call_id = call.id or f"call{self._made:05}"
        self._open.append((call_id, call.name))
        return call_id

    def end(self, response: FunctionResponse, at: str) -> str:
        """The id of the call that is responded to: the one with its id, else with its name."""
        for place, (call_id, name) in enumerate(self._open):
            if name == response.name and response.id in (None, call_id):
                del self._open[place]
                return call_id
        raise Refused("invalid_value", f"{at}.functionResponse responds to no functionCall.")


def _of_user(content: Content, at: str, calls: _Calls) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for place, part in _parts(content, at):
        if part.text is not None:
            texts.append(part.text)
        elif part.function_response is None:
            raise Refused("invalid_value", f"{place} is a functionCall of a user.")
        elif texts:
            raise Refused(
                "unsupported_content",
                f"{place} is a functionResponse after text, and a chat has results first.",
            )
        else:
            results.append(_result(part.function_response, place, calls))
    return [*results, {"role": "user", "content": content_of(texts)}] if texts else results


def _result(response: FunctionResponse, at: str, calls: _Calls) -> dict[str, Any]:
    return {
        "role": "tool",
        "tool_call_id": calls.end(response, at),
        "name": response.name,
        "content": msgspec.json.encode(response.response).decode(),
    }


def _of_model(content: Content, at: str, calls: _Calls) -> dict[str, Any]:
    texts: list[str] = []
    called: list[dict[str, Any]] = []
    for place, part in _parts(content, at):
        if part.function_call is not None:
            call = part.function_call
            called.append(function_call(calls.begin(call), call.name, call.args))
        elif part.text is None:
            raise Refused("invalid_value", f"{place} is a functionResponse of the model.")
        elif called:
            raise Refused(
                "unsupported_content",
                f"{place} is text after a functionCall, and a chat has the text of a message "
                "first.",
            )
        else:
            texts.append(part.text)
    return without_none(
        role="assistant",
        content=content_of(texts) if texts else None,
        tool_calls=called or None,
    )


def _parts(content: Content, at: str) -> list[tuple[str, Part]]:
    """Each part with its place."""
    placed = [(f"{at}.parts[{number}]", part) for number, part in enumerate(content.parts)]
    for place, part in placed:
        if [part.text, part.function_call, part.function_response].count(None) != 2:
            raise Refused(
                "invalid_value",
                f"{place} must have one of: text, functionCall, functionResponse.",
            )
    return placed


def _whole(number: float | None) -> int | None:
    if number is None:
        return None
    if number < 0 or number != int(number):
        raise Refused(
            "invalid_value",
            f"request: generationConfig.topK must be a whole number from 0, not {number}.",
        )
    return int(number)


def _tool(declared: FunctionDeclaration) -> dict[str, Any]:
    parameters = declared.parameters_json_schema
    if declared.parameters is not None:
        at = f"request: tools: {declared.name}: parameters"
        if parameters is not None:
            raise Refused("invalid_value", f"{at} stands beside parametersJsonSchema.")
        parameters = json_schema(declared.parameters, at)
    function = without_none(
        name=declared.name, description=declared.description, parameters=parameters
    )
    return {"type": "function", "function": function}


def _response_format(config: GenerationConfig) -> dict[str, Any] | None:
    at = "request: generationConfig"
    schema = config.response_json_schema
    if config.response_schema is not None:
        if schema is not None:
            raise Refused("invalid_value", f"{at}.responseSchema stands beside responseJsonSchema.")
        schema = json_schema(config.response_schema, f"{at}.responseSchema")
    if config.response_mime_type == "application/json":
        return {"type": "json_object"} if schema is None else json_answer(schema)
    if schema is not None:
        raise Refused(
            "missing_required_parameter",
            f"{at}.responseMimeType must be application/json beside a schema.",
        )
    return None
