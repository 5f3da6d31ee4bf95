"""The request of a Gemini batch line, read strictly.

The fields and their meaning are those of https://ai.google.dev/api/generate-content. A field that
is not named here would change the answer and cannot be carried over, so it rejects its row.
"""

from contextlib import suppress
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from acdc_dagster.requests.files.openapi_schema import OpenApiSchema
from acdc_dagster.requests.refused import Refused, refusal


class _Strict(
    Struct, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True, rename="camel"
):
    pass


class FunctionCall(_Strict, frozen=True, gc=False):
    """A call of the model."""

    name: str
    args: dict[str, Any] = {}
    id: str | None = None


class FunctionResponse(_Strict, frozen=True, gc=False):
    """What a called function gave."""

    name: str
    response: dict[str, Any]
    id: str | None = None


class Part(_Strict, frozen=True, gc=False):
    """A piece of a content: one of the three."""

    text: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None


class Content(_Strict, frozen=True, gc=False):
    """One turn; without a role it is a user's."""

    parts: Annotated[list[Part], Meta(min_length=1)]
    role: Literal["user", "model", "function"] | None = None


class TextPart(_Strict, frozen=True, gc=False):
    """A piece of text."""

    text: str


class SystemInstruction(_Strict, frozen=True, gc=False):
    """The system message."""

    parts: list[TextPart]
    role: str | None = None  # the API ignores it


class FunctionDeclaration(_Strict, frozen=True, gc=False):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: OpenApiSchema | None = None
    parameters_json_schema: dict[str, Any] | None = None


class Tool(_Strict, frozen=True, gc=False):
    """Some of the functions that the model may call."""

    function_declarations: list[FunctionDeclaration]


class CallingConfig(_Strict, frozen=True, gc=False):
    """Whether the model may call functions."""

    mode: Literal["AUTO", "NONE"]


class ToolConfig(_Strict, frozen=True, gc=False):
    """How tools are used."""

    function_calling_config: CallingConfig


class GenerationConfig(_Strict, frozen=True, gc=False):
    """Sampling, and what shape the answer has."""

    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: int | float | None = None  # a whole number; Vertex AI has it as 40.0
    stop_sequences: list[Annotated[str, Meta(min_length=1)]] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    response_mime_type: Literal["text/plain", "application/json"] | None = None
    response_schema: OpenApiSchema | None = None
    response_json_schema: dict[str, Any] | None = None
    candidate_count: Literal[1] | None = None


class Request(_Strict, frozen=True, gc=False):
    """What one line asks."""

    contents: Annotated[list[Content], Meta(min_length=1)]
    system_instruction: SystemInstruction | None = None
    generation_config: GenerationConfig = GenerationConfig()
    tools: list[Tool] | None = None
    tool_config: ToolConfig | None = None
    # They change no answer: the model is the job's, no answer is filtered, labels are bookkeeping.
    model: str | None = None
    safety_settings: Any = None
    labels: dict[str, str] | None = None


_request = msgspec.json.Decoder(Request)
_object = msgspec.json.Decoder(dict[str, Any])
# Fields whose value is the user's own JSON.
_FREE = {"args", "response", "responseJsonSchema", "parametersJsonSchema", "labels", "default"}


def read_request(request: bytes) -> Request:
    """The request, whose fields may be named in camelCase or, as the API takes too, snake_case.

    Raises:
        Refused: Names the field that is missing, wrong or not supported.
    """
    with suppress(msgspec.ValidationError):
        return _request.decode(request)
    try:
        renamed: Any = _camel_case(_object.decode(request), "request")
        return msgspec.convert(renamed, Request)
    except msgspec.MsgspecError as error:
        raise refusal("request", error) from None


def _camel_case(value: Any, at: str) -> Any:
    """The same with the names of its fields in camelCase; what is the user's own stays."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_camel_case(item, f"{at}[{place}]") for place, item in enumerate(items)]
    if not isinstance(value, dict):
        return value
    renamed: dict[str, Any] = {}
    for name, field in cast("dict[str, Any]", value).items():
        first, *rest = name.split("_")
        camel = first + "".join(word.capitalize() for word in rest)
        if camel in renamed:
            raise Refused("invalid_value", f"{at} has {camel} twice, in two spellings.")
        if camel in _FREE:
            renamed[camel] = field
        elif camel == "properties" and isinstance(field, dict):
            properties = cast("dict[str, Any]", field)
            renamed[camel] = {
                key: _camel_case(schema, f"{at}.{camel}.{key}")
                for key, schema in properties.items()
            }
        else:
            renamed[camel] = _camel_case(field, f"{at}.{camel}")
    return renamed
