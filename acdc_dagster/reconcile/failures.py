"""Classes of failure, and what a person does about each."""

from typing import Literal

FailureClass = Literal["permanent", "truncated", "parse"]

REMEDIES: dict[FailureClass, str] = {
    "permanent": "The engine refuses this request whenever it is asked; correct the row or the "
    "job's sampling.",
    "truncated": "The answer hit max_tokens before it was complete; raise sampling.max_tokens.",
    "parse": "The answer is complete but does not fit answer_schema; make the prompt stricter or "
    "the schema wider.",
}
