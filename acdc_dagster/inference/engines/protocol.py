"""What a worker asks of an engine: take requests, make steps, hand out answers."""

from datetime import UTC, datetime
from typing import Protocol

from msgspec import Struct


class RequestRefused(Exception):
    """The engine does not take this request; it is unharmed and takes others."""


class Image(Struct, frozen=True, array_like=True):
    """An image that a prompt shows: its file's bytes, and their SHA-256 in hexadecimal digits."""

    sha256: str
    content: bytes


class Request(Struct, frozen=True, array_like=True):
    """A distinct request as `sorted_requests` holds it.

    Attributes:
        token_ids: `prompt_tokens` little-endian numbers, of 2 or 4 bytes each.
        sampling: JSON of what the engine needs beside the tokens.
        max_tokens: Most tokens of the answer.
        next_lcp: Prompt tokens shared with the request after it in prefix order.
        images: What comes in the place of the placeholders in the prompt, in their order.
    """

    request_hash: str
    token_ids: bytes
    prompt_tokens: int
    sampling: str
    max_tokens: int
    next_lcp: int
    images: list[Image] = []


class Answer(Struct, frozen=True):
    """What the engine made of one request.

    Attributes:
        text: The answer, without its reasoning.
        finish_reason: stop, length, or what else the engine says.
        cached_tokens: Prompt tokens found in the prefix cache.
        completion_tokens: Tokens made, those of the reasoning and of all choices included.
        reasoning: What the model wrote before its answer, where that is told apart.
        reasoning_tokens: Tokens of the reasoning.
        choices: JSON of the answers after the first, where more than one is asked for: a list of
            objects with the fields of this one that differ.
        logprobs: JSON of the log probabilities, as the OpenAI API gives them.
        embedding: The vector, where one is asked for.
        error_class: Why there is no answer; None if there is one,
        error_message: and in the engine's words.
    """

    request_hash: str
    started_at: datetime
    finished_at: datetime
    text: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning: str | None = None
    reasoning_tokens: int | None = None
    choices: str | None = None
    logprobs: str | None = None
    embedding: list[float] | None = None
    error_class: str | None = None
    error_message: str | None = None


def unanswered(request_hash: str, error_class: str, reason: str) -> Answer:
    """What stands in the place of an answer where there is none."""
    now = datetime.now(UTC)
    return Answer(request_hash, now, now, error_class=error_class, error_message=reason)


class EngineState(Struct, frozen=True):
    """How busy the engine is; counts since it started.

    Attributes:
        running: Requests in the batch of the last step.
        waiting: Requests taken and not in a batch yet.
        kv_usage: Share of the KV memory in use, 0 to 1.
        generated_tokens: Tokens made, of requests without an answer yet too.
        preemptions: Requests that were put back for want of KV memory.
        drafts: Times that tokens were speculated.
        accepted: Accepted speculative tokens by their position in the draft.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    generated_tokens: int = 0
    preemptions: int = 0
    drafts: int = 0
    accepted: list[int] = []


class Engine(Protocol):
    """A running engine, in the process and thread that made it."""

    @property
    def name(self) -> str:
        """Engine and version, as results record it."""
        ...

    @property
    def device(self) -> str:
        """What it runs on, by the name that its maker gives it; `cpu` without a GPU."""
        ...

    @property
    def unfinished(self) -> int:
        """Requests taken and not answered yet."""
        ...

    @property
    def state(self) -> EngineState:
        """How busy it was in the last step."""
        ...

    def add(self, request: Request) -> None:
        """Take a request; its hash must be new.

        Raises:
            RequestRefused: The request is not valid for this engine.
        """
        ...

    def abort(self, request_hashes: list[str]) -> None:
        """Forget requests; no answer comes for them."""
        ...

    def step(self) -> list[Answer]:
        """Do one step of work; the requests that it finished."""
        ...

    def close(self) -> None:
        """Free the engine's memory and processes."""
        ...
