"""Speculation as a plan says it, in words of the field; an engine's adapter translates it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Method = Literal["draft_model", "eagle", "eagle3", "ngram", "suffix"]


class Speculation(BaseModel):
    """How a replica drafts.

    Attributes:
        method: A smaller model, a head of the model's own (EAGLE), or a look-up in the prompt and
            the answer so far: of its last few tokens (n-gram), or of the longest ending (suffix).
        tokens: Most tokens of a draft.
        model_path: Of the smaller model or the head; none for a look-up.
        schedule: Batch sizes (first, last, tokens of a draft), from 1 on without gaps; empty if
            drafts are as long at each size. None of them drafts more than `tokens`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method
    tokens: int = Field(ge=1)
    model_path: str | None = None
    schedule: list[tuple[int, int, int]] = []
