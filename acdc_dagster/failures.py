"""Classes of failure: what each means, how often it is tried again, what a person does about it."""

from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field

from acdc_dagster.declared import Declared

FailureClass = Literal["transient", "permanent", "truncated", "parse", "capacity"]

FAILURE_CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)


@dataclass(frozen=True)
class Failure:
    """A class of failure.

    Attributes:
        meaning: What happened, as a sentence.
        remedy: What a person does, as an instruction.
    """

    meaning: str
    remedy: str


FAILURES: dict[FailureClass, Failure] = {
    "transient": Failure(
        "The engine gave no answer in time, or died while others of its requests did not.",
        "Queue it again: acdc dead-letter JOB --class transient --requeue, then run the partition. "
        "If that is no help, raise limits.request_seconds.",
    ),
    "permanent": Failure(
        "The engine refuses this request whenever it is asked.",
        "Correct the row or the job's sampling: the engine refuses this request whenever it is "
        "asked.",
    ),
    "truncated": Failure(
        "The answer hit max_tokens before it was complete.",
        "Raise sampling.max_tokens, or let the job ask such requests again with more: "
        "retries.truncated.max_tokens.",
    ),
    "parse": Failure(
        "The answer is complete but does not fit the schema.",
        "Make the prompt stricter or answer_schema wider.",
    ),
    "capacity": Failure(
        "The engine had no memory for the request, or was never started for want of room.",
        "The same plan would fail again: lower max_num_seqs or max_model_len, or give the engine "
        "more memory; then materialise profile and what follows it, with the row queued again.",
    ),
}


class LargerCap(Declared):
    """Truncated answers are asked for once more with room for more tokens."""

    max_tokens: int = Field(ge=1, description="Most tokens of the second answer.")


class Retries(Declared):
    """How often a request is asked again after a failure, by class of failure.

    A finished request is never repeated, and a `permanent` failure is never asked again: nothing
    would be different. Nor is `capacity`: it needs another plan.
    """

    transient: int = Field(default=2, ge=0, le=10, description="As it was.")
    parse: int = Field(
        default=1, ge=0, le=3, description="With the schema and an instruction to keep to it."
    )
    truncated: LargerCap | None = Field(
        default=None, description="Once, with max_tokens; not at all if not given."
    )

    def allowed(self, failure: str) -> int:
        """How many failures of this class are followed by another attempt."""
        if failure == "truncated":
            return 0 if self.truncated is None else 1
        return {"transient": self.transient, "parse": self.parse}.get(failure, 0)
