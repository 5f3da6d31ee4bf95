"""Classes of failure and how often a job asks again."""

import pytest
from support import MODEL, Declare

from acdc_dagster.errors import DeclarationError
from acdc_dagster.failures import FAILURE_CLASSES, FAILURES
from acdc_dagster.retries import Retries

SOURCE = {"table": "rows", "id_column": "id"}


def test_every_class_says_what_to_do() -> None:
    """None without a remedy, and none that is not a class."""
    assert set(FAILURES) == set(FAILURE_CLASSES)
    assert all(failure.meaning and failure.remedy for failure in FAILURES.values())


def test_what_another_attempt_cannot_change_is_not_tried_again() -> None:
    """By default: transient twice, parse once; never what stays as it is, nor an unknown class."""
    allowed = {name: Retries().allowed(name) for name in FAILURE_CLASSES}
    assert allowed == {"transient": 2, "permanent": 0, "truncated": 0, "parse": 1, "capacity": 0}
    assert Retries().allowed("rejected") == 0


def test_a_job_declares_its_attempts(declare: Declare) -> None:
    """A larger cap makes truncated answers worth a second attempt."""
    retries = {"transient": 0, "parse": 2, "truncated": {"max_tokens": 300}}
    attributes = {"source": SOURCE, "model": MODEL, "retries": retries}
    declared = declare("job", attributes, prompt_dot_md="{{ text }}").declared.retries
    assert [declared.allowed(name) for name in ("transient", "parse", "truncated")] == [0, 2, 1]


@pytest.mark.parametrize(
    ("retries", "word"),
    [
        ({"truncated": {"max_tokens": 256}}, "more than sampling.max_tokens, 256"),
        ({"permanent": 1}, "unknown field"),
        ({"parse": 99}, "retries.parse"),
    ],
)
def test_attempts_that_make_no_sense_are_refused(
    declare: Declare, retries: dict[str, object], word: str
) -> None:
    """The same cap again, a class that is never asked again, more than anybody wants."""
    attributes = {"source": SOURCE, "model": MODEL, "retries": retries}
    with pytest.raises(DeclarationError, match=word):
        declare("job", attributes, prompt_dot_md="{{ text }}")
