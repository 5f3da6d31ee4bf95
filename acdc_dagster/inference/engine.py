"""What a worker asks of an engine: take requests, make steps, hand out answers."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class RequestRefused(Exception):
    """The engine does not take this request; it is unharmed and takes others."""


@dataclass(frozen=True)
class Answer:
    """What the engine made of one request.

    Attributes:
        finish_reason: stop, length, or what else the engine says.
        cached_tokens: Prompt tokens found in the prefix cache.
    """

    request_hash: str
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    started_at: datetime
    finished_at: datetime


class Engine(Protocol):
    """A running engine."""

    @property
    def name(self) -> str:
        """Engine and version, as results record it."""
        ...

    @property
    def unfinished(self) -> int:
        """Requests taken and not answered yet."""
        ...

    def add(self, request_hash: str, token_ids: list[int], sampling: str) -> None:
        """Take a request; its hash must be new.

        Raises:
            RequestRefused: The request is not valid for this engine.
        """
        ...

    def step(self) -> list[Answer]:
        """Do one step of work; the requests that it finished."""
        ...

    def close(self) -> None:
        """Free the engine's memory and processes."""
        ...
