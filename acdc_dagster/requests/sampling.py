"""What a body asks of the engine beside its prompt, by the names and in the ranges of vLLM's API.

Fields that vLLM's server takes and that are not here change the answer, or what is told of it, in
a way that a batch cannot give: an unknown field rejects its row by name.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from acdc_dagster.requests.refused import Refused

_MOST_INT = 2**63 - 1
# Levels of a JSON schema: Python and the engine walk it by recursion.
MOST_LEVELS = 256
# Choices of one request, as in the OpenAI API.
MOST_CHOICES = 128
# Alternatives to a token; vLLM's own limit, unless the engine is started with another.
MOST_LOGPROBS = 20

Tokens = Annotated[int, Meta(ge=1, le=_MOST_INT)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LogProbs = Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]
_Text = Annotated[str, Meta(min_length=1)]


class JsonSchema(Struct, frozen=True, gc=False):
    """The schema in a response_format."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True, gc=False):
    """What shape the answer must have, in the words of the OpenAI API."""

    type: Literal["text", "json_schema", "json_object"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What shape the answer must have, in vLLM's words; one of the first six is given.

    Attributes:
        json: A JSON schema, or its text.
        grammar: In EBNF or Lark.
        structural_tag: JSON of what xgrammar calls so.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


STRUCTURES = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class Named(Struct, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What all bodies hold: the model, and bookkeeping of the API that changes no answer."""

    model: str
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    priority: int | None = None
    request_id: str | None = None
    session_id: str | None = None


class Asked(Named, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What bodies of both endpoints that generate text ask for."""

    max_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_MOST_INT)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=_MOST_INT)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stop: _Text | list[_Text] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    min_tokens: Annotated[int, Meta(ge=0, le=_MOST_INT)] | None = None
    ignore_eos: bool = False
    logit_bias: dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: list[_Text] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: Literal[False] | None = None


class ChatAsked(Asked, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What a chat asks for beside its messages, without what changes how they are rendered."""

    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: LogProbs | None = None
    # Told apart where the model has a reasoning parser, and never hidden.
    include_reasoning: Literal[True] | None = None


def check_levels(at: str, value: object) -> None:
    """See that JSON can be walked by recursion.

    Args:
        at: Where it stands, for the message.
        value: As `msgspec` decodes it.

    Raises:
        Refused: It has more than `MOST_LEVELS` levels of objects and lists.
    """
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [child for parent in level for child in _children(parent)]
        if not any(isinstance(child, dict | list) for child in level):
            return
    raise Refused(
        "invalid_value", f"{at} is nested too deeply: more than {MOST_LEVELS} levels of JSON."
    )


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def check_asked(body: Asked) -> None:
    """See what types cannot say.

    Raises:
        Refused: Names what does not fit together.
    """
    wanted, structure = body.response_format, body.structured_outputs
    if wanted is not None and wanted.json_schema is not None:
        check_levels("body: response_format.json_schema.schema", wanted.json_schema.schema)
    if structure is not None:
        check_levels("body: structured_outputs.json", structure.json)
    if wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None:
        raise Refused("missing_required_parameter", "body: response_format.json_schema is missing.")
    if structure is not None:
        given = [name for name in STRUCTURES if getattr(structure, name) is not None]
        if len(given) != 1:
            raise Refused(
                "invalid_value",
                f"body: structured_outputs holds {' and '.join(given) or 'none'} of "
                f"{', '.join(STRUCTURES)}; give one.",
            )
        if wanted is not None and wanted.type != "text":
            raise Refused(
                "invalid_value", "body: structured_outputs stands beside response_format; give one."
            )
    least, most = body.min_tokens, body.max_tokens
    if isinstance(body, ChatAsked):
        most = most if body.max_completion_tokens is None else body.max_completion_tokens
        if body.top_logprobs and not body.logprobs:
            raise Refused("invalid_value", "body: top_logprobs needs logprobs to be true.")
    if least is not None and most is not None and least > most:
        raise Refused(
            "invalid_value", f"body: min_tokens is {least}, more than max_tokens: {most}."
        )
