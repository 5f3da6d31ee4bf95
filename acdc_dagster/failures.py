"""Classes of failure: what each means, and what a person does about it."""

from dataclasses import dataclass
from typing import Literal, get_args

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
