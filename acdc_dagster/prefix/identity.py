"""What makes two requests the same: tokens, model, and everything that shapes the answer."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from acdc_dagster.deployment import Model
from acdc_dagster.prefix.order import Tokens
from acdc_dagster.requests.body import Body, ChatBody, CompletionBody, Refused

_OPTIONAL = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
# The API's default; a chat answer may fill the context instead.
_COMPLETION_TOKENS = 16
_ONLY_WHEN_SAMPLED = ("top_p", "top_k", "min_p", "seed")


@dataclass(frozen=True)
class EngineRequest:
    """A request as the engine gets it.

    Attributes:
        sampling: JSON of everything beside the tokens, its fields in a fixed order.
        deterministic: Asked twice, it may be answered once: greedy, or with a seed.
    """

    tokens: Tokens
    sampling: str
    deterministic: bool

    def request_hash(self, model: Model, salt: str) -> str:
        """32 hexadecimal digits over tokens, model, revision and sampling.

        Args:
            model: The model that answers.
            salt: Tells requests apart whose answers are meant to differ although all else is
                equal; only used for requests that are not deterministic.
        """
        digest = hashlib.sha256()
        head = [model.name, model.revision, self.sampling, "" if self.deterministic else salt]
        digest.update(json.dumps(head).encode())
        digest.update(self.tokens.astype("<i4").tobytes())
        return digest.hexdigest()[:32]


def engine_request(
    body: Body, ids: list[int], model: Model, defaults: dict[str, Any]
) -> EngineRequest:
    """The engine's view of a body.

    Args:
        body: The parsed request body.
        ids: Its prompt's token ids.
        model: Gives the context length.
        defaults: The model's own sampling defaults (generation_config.json).

    Raises:
        Refused: The prompt leaves no room for an answer.
    """
    room = model.context_length - len(ids)
    if room < 1:
        raise Refused(
            "context_length_exceeded",
            f"The prompt has {len(ids)} tokens and {model.name} takes {model.context_length} with "
            "the answer; shorten the prompt or choose a model with a longer context.",
        )
    if not ids:
        raise Refused("empty_prompt", "The prompt has no tokens.")
    sampling = _sampling(body, room, defaults)
    deterministic = sampling["temperature"] == 0 or "seed" in sampling
    # Not sorted: an engine that is held to a schema writes its properties in the schema's order.
    return EngineRequest(np.asarray(ids, dtype=np.int32), json.dumps(sampling), deterministic)


def _sampling(body: Body, room: int, defaults: dict[str, Any]) -> dict[str, Any]:
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    if isinstance(body, CompletionBody):
        asked = body.max_tokens or _COMPLETION_TOKENS
    temperature = body.temperature
    if temperature is None:
        temperature = float(defaults.get("temperature", 1.0))  # 1 is the API's default
    sampling: dict[str, Any] = {
        "max_tokens": min(asked or room, room),
        "temperature": float(temperature),
    }
    for name in _OPTIONAL:
        value = getattr(body, name)
        if value is None:
            value = defaults.get(name)
        if value is not None and not (temperature == 0 and name in _ONLY_WHEN_SAMPLED):
            sampling[name] = value
    if body.stop is not None:
        sampling["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    wanted = body.response_format if isinstance(body, ChatBody) else None
    if wanted is not None and wanted.type == "json_object":
        sampling["json_object"] = True
    elif wanted is not None and wanted.type == "json_schema" and wanted.json_schema is not None:
        sampling["json_schema"] = wanted.json_schema.schema
    return sampling
