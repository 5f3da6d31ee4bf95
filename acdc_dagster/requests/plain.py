"""The plain chat request, nearly all there are, read in a hurry: it was validated when taken in.

Plain is: messages of a role and a text, and settings that do not change the prompt. Whatever else
a body holds, `body.parse_body` reads it.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct


class PlainMessage(Struct, gc=False, forbid_unknown_fields=True):
    """A role and a text."""

    role: str
    content: str


class PlainBody(Struct, gc=False, forbid_unknown_fields=True):
    """A body with plain messages; settings are only told apart, not looked into."""

    model: str
    messages: list[PlainMessage]
    max_tokens: Any = None
    max_completion_tokens: Any = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    seed: Any = None
    n: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    stream: Any = None
    stop: Raw = Raw()
    response_format: Raw = Raw()
    structured_outputs: Raw = Raw()
    user: Raw = Raw()
    metadata: Raw = Raw()
    store: Raw = Raw()
    service_tier: Raw = Raw()

    def settings(self) -> tuple[Any, ...]:
        """Equal for two bodies that differ in their messages and bookkeeping only."""
        return (
            self.max_tokens,
            self.max_completion_tokens,
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.repetition_penalty,
            self.seed,
            self.n,
            self.logprobs,
            self.top_logprobs,
            bytes(self.stop),
            bytes(self.response_format),
            bytes(self.structured_outputs),
        )


_decode = msgspec.json.Decoder(PlainBody).decode
_decode_message = msgspec.json.Decoder(PlainMessage).decode


def plain_body(raw: str) -> PlainBody | None:
    """The body if it is plain."""
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


def plain_message(raw: str) -> PlainMessage | None:
    """The one message that this JSON is, if it is plain."""
    try:
        return _decode_message(raw)
    except msgspec.MsgspecError:
        return None
