"""The typed parser of a request: the envelope of an OpenAI-batch line, and the body in it.

The parser is strict on purpose. A field that the engine would ignore changes the answer without a
word, so an unsupported field rejects its row and names itself.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from acdc_dagster.requests.message import ImagePart, Message, Tool

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ENDPOINTS = (CHAT, COMPLETIONS)


# Characters of a message.
_MOST = 500


def shortened(message: str) -> str:
    """A message that repeats what a row says, of whatever length, in 500 characters at most."""
    return message if len(message) <= _MOST else f"{message[: _MOST - 100]} … {message[-97:]}"


class Refused(Exception):
    """A row is no valid request: `code` in OpenAI's words where it has one, and why in short."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        self.code = code
        self.message = shortened(message)
        super().__init__(self.message)
        self.custom_id = custom_id


class JsonSchema(Struct, frozen=True, gc=False):
    """The schema in a response_format."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True, gc=False):
    """What shape the answer must have."""

    type: Literal["text", "json_schema", "json_object"]
    json_schema: JsonSchema | None = None


# In a message of another role the engine would ignore them.
_OF_ONE_ROLE = {
    "tool_calls": "assistant",
    "reasoning": "assistant",
    "reasoning_content": "assistant",
    "tool_call_id": "tool",
}
# Fields of the body, and settings of the call that renders it: no variables for the template.
_NOT_OF_A_TEMPLATE = {
    "messages",
    "conversation",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
}

_MOST_INT = 2**63 - 1
_Tokens = Annotated[int, Meta(ge=1, le=_MOST_INT)]
_Stop = Annotated[str, Meta(min_length=1)]


class _Common(Struct, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    model: str
    max_tokens: _Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_MOST_INT)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=_MOST_INT)] | None = None
    stop: _Stop | list[_Stop] | None = None
    n: Literal[1] | None = None
    stream: Literal[False] | None = None
    # Bookkeeping of the API that changes no answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None


class ChatSampling(_Common, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What a chat asks for beside its messages, without what changes how they are rendered."""

    max_completion_tokens: _Tokens | None = None
    response_format: ResponseFormat | None = None


class ChatBody(ChatSampling, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of a /v1/chat/completions request."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    tools: Annotated[list[Tool], Meta(min_length=1)] | None = None
    # Neither changes the prompt, and a call is answered as the text that the model wrote.
    tool_choice: Literal["none", "auto"] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class _PlainMessage(Struct, gc=False, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _PlainChat(ChatSampling, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What nearly all bodies are: a ChatBody that is valid if its types are."""

    messages: Annotated[list[_PlainMessage], Meta(min_length=1)]


class CompletionBody(_Common, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of a /v1/completions request."""

    prompt: str


Body = ChatBody | CompletionBody
T = TypeVar("T")


class _Envelope(Struct, frozen=True, gc=False):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw()


_envelope = msgspec.json.Decoder(_Envelope)
_plain = msgspec.json.Decoder(_PlainChat)
_bodies: dict[str, msgspec.json.Decoder[Any]] = {
    CHAT: msgspec.json.Decoder(ChatBody),
    COMPLETIONS: msgspec.json.Decoder(CompletionBody),
}


def parse_line(line: bytes) -> tuple[str, str, str, str]:
    """Parse one line of an OpenAI-batch file.

    Returns:
        custom_id, endpoint, model, and the body's JSON exactly as given.

    Raises:
        Refused: Why the line is no request.
    """
    envelope = decode_line(line, _envelope)
    custom_id = check_custom_id(envelope.custom_id)
    if envelope.method != "POST":
        raise Refused("invalid_method", f"method must be POST, not {envelope.method!r}.", custom_id)
    if envelope.url not in ENDPOINTS:
        raise Refused(
            "invalid_url",
            f"url {envelope.url!r} is not served; use one of: {', '.join(ENDPOINTS)}.",
            custom_id,
        )
    raw = bytes(envelope.body)
    if not raw:
        raise Refused("missing_required_parameter", "body is missing.", custom_id)
    try:
        model = _model_of(envelope.url, raw)
    except Refused as refused:
        raise Refused(refused.code, refused.message, custom_id) from None
    return custom_id, envelope.url, model, raw.decode("utf-8")


def _model_of(endpoint: str, raw: bytes) -> str:
    """The model that a body names, once the body is seen to be valid."""
    if endpoint == CHAT:
        try:
            body = _plain.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            pass  # the careful parser takes it, or says what is wrong
        else:
            check_response_format(body.response_format)
            return body.model
    return parse_body(endpoint, raw).model


def decode_line(line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The object in one line of a file.

    Raises:
        Refused: The line is not UTF-8, not JSON or no object.
    """
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(
            "invalid_json_line", f"The line is not valid UTF-8 at its byte {error.start}."
        ) from None
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        # Within an object any value is taken but for numbers that are too large.
        reason = f"but {error}" if "`$." in str(error) else "but not an object"
        raise Refused("invalid_json_line", f"The line is JSON, {reason}.") from None
    except msgspec.DecodeError as error:
        raise Refused("invalid_json_line", f"The line is not valid JSON: {error}.") from None
    except RecursionError:
        raise Refused("invalid_json_line", "The line is nested too deeply.") from None


def check_custom_id(custom_id: object, name: str = "custom_id") -> str:
    """`custom_id` if it can be one.

    Args:
        custom_id: What the row gives.
        name: What the field is called there.

    Raises:
        Refused: It is missing, no string (7 and "7" are never taken for the same) or blank.
    """
    if custom_id is None:
        raise Refused("missing_required_parameter", f"{name} is missing.")
    if not isinstance(custom_id, str):
        raise Refused(
            "invalid_custom_id", f"{name} must be a string, not {custom_id!r}; put it in quotes."
        )
    if not custom_id.strip():
        raise Refused("invalid_custom_id", f"{name} is empty or blank.", custom_id)
    return custom_id


def parse_body(endpoint: str, raw: bytes | str) -> Body:
    """Parse a body for one of `ENDPOINTS`.

    Raises:
        Refused: Names the field that is missing, wrong or not supported.
    """
    try:
        body: Body = _bodies[endpoint].decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refusal("body", error) from None
    check_body(body)
    return body


def check_body(body: Body) -> None:
    """See what types cannot say.

    Raises:
        Refused: Names what does not fit together.
    """
    if isinstance(body, CompletionBody):
        if not body.prompt:  # refused by the engine, even where the tokenizer would begin it
            raise Refused("empty_prompt", "body: prompt is empty.")
        return
    for number, message in enumerate(body.messages):
        _check_message(f"body: messages[{number}]", message)
    check_response_format(body.response_format)
    if body.tool_choice == "auto" and body.tools is None:
        raise Refused("missing_required_parameter", "body: tool_choice is auto, without tools.")
    if body.continue_final_message and body.add_generation_prompt:
        raise Refused(
            "invalid_value",
            "body: continue_final_message needs add_generation_prompt to be false: a message is "
            "continued or a new one begun.",
        )
    for name in sorted(_NOT_OF_A_TEMPLATE & (body.chat_template_kwargs or {}).keys()):
        raise Refused(
            "unsupported_parameter", f"body: chat_template_kwargs.{name} is no template's to set."
        )


def check_response_format(wanted: ResponseFormat | None) -> None:
    """See that a JSON schema is there where one is wanted.

    Raises:
        Refused: It is not.
    """
    if wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None:
        raise Refused("missing_required_parameter", "body: response_format.json_schema is missing.")


def _check_message(at: str, message: Message) -> None:
    if isinstance(message.content, list) and any(
        isinstance(part, ImagePart) for part in message.content
    ):
        raise Refused(
            "unsupported_content", f"{at} holds an image, and only text models are served."
        )
    if message.content is None and not message.tool_calls:
        raise Refused("missing_required_parameter", f"{at}.content is missing.")
    if message.role == "tool" and message.tool_call_id is None:
        raise Refused("missing_required_parameter", f"{at}.tool_call_id is missing.")
    for name, role in _OF_ONE_ROLE.items():
        if message.role != role and getattr(message, name) is not None:
            raise Refused(
                "unsupported_parameter",
                f"{at}.{name} belongs to role {role}, not to role {message.role}.",
            )


def refusal(at: str, error: Exception) -> Refused:
    """What to refuse a row with whose part `at` msgspec could not decode."""
    if not isinstance(error, msgspec.ValidationError):
        return Refused("invalid_json_line", f"{at}: {error}.")
    return Refused(_code(str(error)), f"{at}: {error}.")


def _code(error: str) -> str:
    if "missing required field" in error:
        return "missing_required_parameter"
    unsupported = ("unknown field", "`$.n`", "`$.stream`", "`$.tool_choice`")
    if any(said in error for said in unsupported):
        return "unsupported_parameter"
    return "invalid_value"
