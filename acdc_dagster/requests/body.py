"""The typed parser of a request: the envelope of an OpenAI-batch line, and the body in it.

The parser is strict on purpose. A field that the engine would ignore changes the answer without a
word, so an unsupported field rejects its row and names itself.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from acdc_dagster.requests.images import check_image
from acdc_dagster.requests.message import Message, Tool
from acdc_dagster.requests.refused import Refused, refusal
from acdc_dagster.requests.repeated import Repeated, last_message
from acdc_dagster.requests.sampling import (
    Asked,
    ChatAsked,
    LogProbs,
    Named,
    TokenId,
    check_asked,
    check_levels,
)
from acdc_dagster.requests.tool_choice import ToolChoice, check_tool_choice

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS)
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

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


class ChatBody(ChatAsked, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of a /v1/chat/completions request."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    tools: Annotated[list[Tool], Meta(min_length=1)] | None = None
    # Changes no prompt, and a call is answered as the text that the model wrote.
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def image_urls(self) -> list[str]:
        """The addresses of all images, in order."""
        return [url for message in self.messages for url in message.image_urls()]


class _PlainMessage(Struct, gc=False, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _PlainChat(ChatAsked, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What nearly all bodies are: a ChatBody that is valid if its types are."""

    messages: Annotated[list[_PlainMessage], Meta(min_length=1)]


class CompletionBody(Asked, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of a /v1/completions request."""

    prompt: str | list[TokenId]
    logprobs: LogProbs | None = None
    echo: Literal[False] | None = None

    @property
    def text(self) -> str | list[int]:
        """What is tokenised, or its tokens."""
        return self.prompt


class EmbeddingBody(Named, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of a /v1/embeddings request."""

    input: str | list[TokenId]
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    encoding_format: Literal["float"] | None = None  # a vector is kept as numbers

    @property
    def text(self) -> str | list[int]:
        """What is tokenised, or its tokens."""
        return self.input


Body = ChatBody | CompletionBody | EmbeddingBody
T = TypeVar("T")


class _Envelope(Struct, frozen=True, gc=False):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw()


_envelope = msgspec.json.Decoder(_Envelope)
_plain = msgspec.json.Decoder(_PlainChat)
_plain_message = msgspec.json.Decoder(_PlainMessage)
_bodies: dict[str, msgspec.json.Decoder[Any]] = {
    CHAT: msgspec.json.Decoder(ChatBody),
    COMPLETIONS: msgspec.json.Decoder(CompletionBody),
    EMBEDDINGS: msgspec.json.Decoder(EmbeddingBody),
}


def parse_line(line: bytes, models: Repeated[str]) -> tuple[str, str, str, str]:
    """Parse one line of an OpenAI-batch file.

    Args:
        line: The line.
        models: The models of the plain bodies seen, which are valid whatever their last message is.

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
    raw = bytes(envelope.body).decode("utf-8")
    if not raw:
        raise Refused("missing_required_parameter", "body is missing.", custom_id)
    try:
        model = _model_of(envelope.url, raw, models)
    except Refused as refused:
        raise Refused(refused.code, refused.message, custom_id) from None
    return custom_id, envelope.url, model, raw


def _model_of(endpoint: str, raw: str, models: Repeated[str]) -> str:
    """The model that a body names, once the body is seen to be valid."""
    if endpoint != CHAT:
        return parse_body(endpoint, raw).model
    last = last_message(raw)
    model = None if last is None else models.get(last)
    try:
        if last is not None and model is not None:
            _plain_message.decode(raw[last.start : last.stop])
            return model
        body = _plain.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        # The careful parser takes it, or says what is wrong.
        return parse_body(endpoint, raw).model
    check_asked(body)
    if last is not None:
        models.learn(raw, last, body.model)
    return body.model


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
    if isinstance(body, Asked):
        check_asked(body)
    if not isinstance(body, ChatBody):
        if not body.text:  # refused by the engine, even where the tokenizer would begin it
            name = "prompt" if isinstance(body, CompletionBody) else "input"
            raise Refused("empty_prompt", f"body: {name} is empty.")
        return
    for number, message in enumerate(body.messages):
        _check_message(f"body: messages[{number}]", message)
    for tool in body.tools or ():
        check_levels(f"body: parameters of {tool.function.name}", tool.function.parameters)
    check_tool_choice(body.tool_choice, body.tools, body.parallel_tool_calls, body)
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


def _check_message(at: str, message: Message) -> None:
    images = message.image_urls()
    if images and message.role != "user":
        raise Refused("unsupported_content", f"{at} holds an image, and only a user can show one.")
    for number, url in enumerate(images):
        check_image(url, f"{at}, image {number}")
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
