"""Speculation as a plan or a declaration says it; an engine's adapter translates it."""

from typing import Annotated, Literal

from pydantic import Field

from acdc_dagster.declared import Declared

Method = Literal["draft_model", "eagle", "eagle3", "ngram", "suffix"]

# No tuple: the schema of one is more than what samples of a declaration can be made of.
Range = Annotated[list[int], Field(min_length=3, max_length=3)]


class Speculation(Declared):
    """How a replica drafts.

    Attributes:
        method: A smaller model, a head of the model's own (EAGLE), or a look-up in the prompt and
            the answer so far: of its last few tokens (n-gram), or of the longest ending (suffix).
        tokens: Most tokens of a draft.
        model_path: Of the smaller model or the head; none for a look-up.
        schedule: Batch sizes (first, last, tokens of a draft), from 1 on without gaps; empty if
            drafts are as long at each size. None of them drafts more than `tokens`.
    """

    method: Method
    tokens: int = Field(ge=1)
    model_path: str | None = None
    schedule: list[Range] = Field(default_factory=list[Range])
