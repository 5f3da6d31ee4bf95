"""Classes of failure: what each means, what a person does about it, and whom it concerns."""

from dataclasses import dataclass
from typing import Literal, get_args

import polars as pl

FailureClass = Literal["transient", "permanent", "truncated", "parse", "capacity"]

FAILURE_CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)

# The engine says the same of the request whenever it is asked; other failures are of an hour or a
# machine.
_OF_THE_REQUEST: FailureClass = "permanent"


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


def counts_for(partition: str) -> pl.Expr:
    """Whether a row of `inference` counts for the requests of a partition.

    An answer serves every partition that asks for it, and a refusal is one everywhere. That an
    engine of another partition was late, died or had no memory says nothing of the request.
    """
    lasting = pl.col("error_class").is_null() | (pl.col("error_class") == _OF_THE_REQUEST)
    return (pl.col("partition_key") == partition) | lasting
