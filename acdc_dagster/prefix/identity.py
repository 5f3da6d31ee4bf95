"""What makes two requests the same: tokens, model, and everything that shapes the answer."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from msgspec import structs
from typing_extensions import Buffer

from acdc_dagster.models import Model
from acdc_dagster.requests.body import Body, ChatBody, CompletionBody, EmbeddingBody, Refused
from acdc_dagster.requests.tool_choice import call_schema

_OPTIONAL = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
_NO_SEED = -1  # in vLLM's words
# The API's default; a chat answer may fill the context instead.
_COMPLETION_TOKENS = 16
_ONLY_WHEN_SAMPLED = ("top_p", "top_k", "min_p", "seed")
# What reaches the engine where it differs from the engine's own default.
_UNLESS_DEFAULT: dict[str, Any] = {
    "n": 1,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "min_tokens": 0,
    "ignore_eos": False,
    "allowed_token_ids": None,
    "bad_words": [],
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}


@dataclass(frozen=True)
class Settings:
    """What a request asks of the engine beside its tokens.

    Attributes:
        asked: Most tokens of the answer; None if it may fill the context.
        fields: All else, in a fixed order.
    """

    asked: int | None
    fields: dict[str, Any]

    @property
    def deterministic(self) -> bool:
        """Asked twice, it may be answered once: greedy, with a seed, or no text."""
        return not self.fields.get("temperature") or "seed" in self.fields

    def max_tokens(self, room: int) -> int:
        """Most tokens of an answer for which the context leaves `room`."""
        return room if self.asked is None else min(self.asked, room)

    def sampling(self, max_tokens: int) -> str:
        """JSON for `sorted_requests`.

        Not sorted: an engine that is held to a schema writes its properties in the schema's order.
        """
        return json.dumps({"max_tokens": max_tokens, **self.fields})


def hash_head(model: Model, sampling: str, salt: str = "") -> bytes:
    """What `request_hash` covers beside the prompt.

    Args:
        model: The model that answers; its name, revision and reasoning parser count.
        sampling: JSON of all that shapes the answer beside the tokens.
        salt: Tells requests apart that are not to share an answer although all else is equal, such
            as those that are not deterministic.
    """
    parser = [model.reasoning_parser] if model.reasoning_parser else []
    return json.dumps([model.name, model.revision, sampling, salt, *parser]).encode()


def request_hash(digests: Buffer, head: bytes) -> bytes:
    """16 bytes that are equal for two requests if one answer can serve both.

    Args:
        digests: SHA-256 of each of the prompt's segments (see `segments`), end to end.
        head: See `hash_head`.
    """
    digest = hashlib.sha256(digests)
    digest.update(head)
    return digest.digest()[:16]


def room_for_answer(prompt_tokens: int, model: Model, least: int = 1) -> int:
    """Tokens that the context leaves for the answer.

    Args:
        prompt_tokens: Tokens of the prompt.
        model: The model that answers.
        least: Tokens that an answer has at least.

    Raises:
        Refused: There are fewer, or the prompt is empty.
    """
    if not prompt_tokens:
        raise Refused("empty_prompt", "The prompt has no tokens.")
    room = model.context_length - prompt_tokens
    if room < least:
        raise too_long(f"{prompt_tokens}", model)
    return room


def too_long(tokens: str, model: Model) -> Refused:
    """Why a prompt of so many tokens cannot run."""
    return Refused(
        "context_length_exceeded",
        f"The prompt has {tokens} tokens and {model.name} takes {model.context_length} with the "
        "answer; shorten the prompt or choose a model with a longer context.",
    )


def settings_of(body: Body, defaults: dict[str, Any]) -> Settings:
    """What `body` asks for.

    Args:
        body: The parsed request body.
        defaults: The model's own sampling defaults (generation_config.json).
    """
    if isinstance(body, EmbeddingBody):
        size = {} if body.dimensions is None else {"dimensions": body.dimensions}
        return Settings(0, {"task": "embed", **size})
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    if isinstance(body, CompletionBody):
        asked = body.max_tokens or _COMPLETION_TOKENS
    temperature = body.temperature
    if temperature is None:
        temperature = float(defaults.get("temperature", 1.0))  # 1 is the API's default
    sampling: dict[str, Any] = {"temperature": float(temperature)}
    for name in _OPTIONAL:
        value = getattr(body, name)
        if value is None:
            value = defaults.get(name)
        if value is not None and not (temperature == 0 and name in _ONLY_WHEN_SAMPLED):
            sampling[name] = value
    if sampling.get("seed") == _NO_SEED:
        del sampling["seed"]
    if body.stop:
        sampling["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    for name, default in _UNLESS_DEFAULT.items():
        value = getattr(body, name)
        if value is not None and value != default:
            sampling[name] = value
    if body.logit_bias:
        biases = sorted(body.logit_bias.items())
        sampling["logit_bias"] = {f"{token}": bias for token, bias in biases}
    sampling |= _logprobs(body)
    if isinstance(body, CompletionBody):
        sampling["chat"] = False  # its answer holds no reasoning, and tells tokens in its own form
    structure = _structure(body)
    if structure is not None:
        sampling["structured_outputs"] = structure
    return Settings(asked, sampling)


def _logprobs(body: ChatBody | CompletionBody) -> dict[str, Any]:
    """How many alternatives to tell of each token."""
    if isinstance(body, CompletionBody):
        if body.logprobs is None:
            return {}
        return {"logprobs": body.logprobs}
    if not body.logprobs:
        return {}
    return {"logprobs": body.top_logprobs or 0}


def _structure(body: ChatBody | CompletionBody) -> dict[str, Any] | None:
    """What shape the answer must have, in vLLM's words."""
    if isinstance(body, ChatBody):
        schema = call_schema(body.tool_choice, body.tools, body.parallel_tool_calls)
        if schema is not None:
            return {"json": schema}
    wanted = body.response_format
    if wanted is not None and wanted.type == "json_object":
        return {"json_object": True}
    if wanted is not None and wanted.json_schema is not None and wanted.type == "json_schema":
        return {"json": wanted.json_schema.schema}
    if body.structured_outputs is None:
        return None
    given: dict[str, Any] = structs.asdict(body.structured_outputs)
    return {name: value for name, value in given.items() if value not in (None, False)}
