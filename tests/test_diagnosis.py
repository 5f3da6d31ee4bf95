"""Varying pieces in the head of prompts: found where they cost much, and nothing else is."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from acdc_dagster.prefix.examine.diagnosis import Diagnosis, diagnose
from acdc_dagster.prefix.order import prefix_order, shared_with_previous
from acdc_dagster.prefix.sequences import Sequences

Ids = NDArray[np.int32]
DIGITS = 10  # the ids 0 to 9 are digits; text has larger ones


def text(seed: int, size: int) -> Ids:
    """Tokens as of a text."""
    return np.random.default_rng(seed).integers(100, 50_000, size).astype(np.int32)


def digits(number: int, size: int) -> Ids:
    """A number as its digits, one a token."""
    return np.array([int(digit) for digit in f"{number:0{size}}"], dtype=np.int32)


def seconds(at: int) -> Ids:
    """A moment of a day: hours, minutes and seconds, two digits each."""
    hours, rest = divmod(at, 3600)
    return np.concatenate([digits(part, 2) for part in (hours, *divmod(rest, 60))])


def flat(requests: list[Ids]) -> tuple[Ids, NDArray[np.int64]]:
    """The requests in prefix order, one after the other."""
    ordered = [requests[at] for at in prefix_order(Sequences.of(requests))]
    offsets = np.cumsum([0, *(len(ids) for ids in ordered)])
    return np.concatenate([np.zeros(0, dtype=np.int32), *ordered]), offsets


def shared_tokens(requests: list[Ids]) -> int:
    """What the job shares."""
    packed = Sequences.of(requests)
    return int(shared_with_previous(packed.take(prefix_order(packed))).sum())


def job(rows: int, prompt: Callable[[int], list[Ids]]) -> list[Ids]:
    """So many requests, each of pieces and an item of its own."""
    return [np.concatenate([*prompt(row), text(10_000 + row, 60)]) for row in range(rows)]


HEAD, RULES = text(1, 12), text(2, 500)
MOMENTS = np.random.default_rng(0).integers(0, 86_400, 5000).tolist()


def test_a_timestamp_before_the_rules() -> None:
    """Its place, the share of requests, what it costs, and two requests to show."""
    requests = job(800, lambda row: [HEAD, seconds(MOMENTS[row]), RULES])
    mended = job(800, lambda row: [HEAD, RULES])
    tokens, offsets = flat(requests)
    found = diagnose(tokens, offsets)
    assert found is not None
    assert found.position == 12
    assert found.affected > 0.95
    saved = shared_tokens(mended) - shared_tokens(requests)
    assert found.tokens == pytest.approx(saved, rel=0.05)
    one, other = found.example
    assert one[:8] == other[:8] == HEAD[-8:].tolist()
    assert one[8] != other[8]
    assert max(one[8:14] + other[8:14]) < DIGITS
    assert one[14:] == other[14:] == RULES[: len(one) - 14].tolist()
    for row, shown in zip(found.rows, found.example, strict=True):
        request = tokens[offsets[row] : offsets[row + 1]].tolist()
        assert request[4 : 4 + len(shown)] == shown


def test_a_sample_tells_what_the_job_loses() -> None:
    """Of more requests than are looked at, the loss is that of all of them."""
    requests = job(4500, lambda row: [HEAD, seconds(MOMENTS[row]), RULES])
    mended = job(4500, lambda row: [HEAD, RULES])
    found = diagnose(*flat(requests))
    assert found is not None
    assert found.position == 12
    saved = shared_tokens(mended) - shared_tokens(requests)
    assert found.tokens == pytest.approx(saved, rel=0.05)


def test_an_order_beside_the_tokens() -> None:
    """Tokens may lie in any order if the prefix order is given."""
    requests = job(300, lambda row: [HEAD, seconds(MOMENTS[row]), RULES])
    offsets = np.cumsum([0, *(len(ids) for ids in requests)])
    order = prefix_order(Sequences.of(requests))
    assert diagnose(np.concatenate(requests), offsets, order) == diagnose(*flat(requests))


# Prompts with a piece that varies, and what their requests have in common.
def counter(row: int) -> list[Ids]:
    return [HEAD, digits(row, 1), RULES]  # of different lengths


def identifier(row: int) -> list[Ids]:
    return [HEAD, text(50_000 + row, 20), RULES]


def behind_one_of_three_prompts(row: int) -> list[Ids]:
    return [text(row % 3, 400), seconds(MOMENTS[row]), RULES]


def before_many_documents(row: int) -> list[Ids]:
    return [HEAD, text(50_000 + row, 20), text(row % 50, 300)]


def before_rules_and_documents(row: int) -> list[Ids]:
    return [HEAD, text(50_000 + row, 20), RULES, text(row % 50, 300)]


@pytest.mark.parametrize(
    ("prompt", "position", "then"),
    [
        (counter, 12, lambda row: [HEAD, RULES]),
        (identifier, 12, lambda row: [HEAD, RULES]),
        (behind_one_of_three_prompts, 400, lambda row: [text(row % 3, 400), RULES]),
        (before_many_documents, 12, lambda row: [HEAD, text(row % 50, 300)]),
        (before_rules_and_documents, 12, lambda row: [HEAD, RULES, text(row % 50, 300)]),
    ],
)
def test_pieces_of_any_kind(
    prompt: Callable[[int], list[Ids]], position: int, then: Callable[[int], list[Ids]]
) -> None:
    """A counter, an identifier; after long prompts of some kinds, before texts of many."""
    requests = job(500, prompt)
    found = diagnose(*flat(requests))
    assert found is not None
    assert found.position == position
    assert found.affected > 0.95
    saved = shared_tokens(job(500, then)) - shared_tokens(requests)
    assert found.tokens == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(lambda row: [HEAD, RULES], id="one prompt"),
        pytest.param(lambda row: [text(row % 5, 300), RULES], id="some prompts with an end alike"),
        pytest.param(lambda row: [text(row // 20, 300)], id="documents"),
        pytest.param(lambda row: [text(70_000 + row, 300)], id="nothing in common"),
        pytest.param(lambda row: [HEAD, digits(row % 4, 1), RULES], id="a piece of four values"),
        pytest.param(lambda row: [RULES, seconds(row)], id="a timestamp where it should be"),
        pytest.param(lambda row: [HEAD, seconds(row), text(2, 20)], id="hardly anything after it"),
        pytest.param(lambda row: [HEAD, text(70_000 + row, 100), RULES], id="a long piece"),
    ],
)
def test_nothing_to_mend(prompt: Callable[[int], list[Ids]]) -> None:
    """Where sharing is as it can be, or the piece costs little, there is no diagnosis."""
    assert diagnose(*flat(job(300, prompt))) is None


def test_repeated_requests_share_already() -> None:
    """A request that stands twice has nothing left to share."""
    once = job(300, lambda row: [text(70_000 + row, 300)])
    assert diagnose(*flat([*once, *once])) is None


def test_a_job_must_lose_enough() -> None:
    """What few requests lose is no diagnosis unless asked for."""
    clean = job(950, lambda row: [RULES])
    stamped = job(30, lambda row: [HEAD, seconds(MOMENTS[row]), text(3, 100)])
    assert diagnose(*flat([*clean, *stamped])) is None
    found = diagnose(*flat([*clean, *stamped]), min_gain=0.001)
    assert isinstance(found, Diagnosis)
    assert found.affected == pytest.approx(0.03, abs=0.005)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_hardly_any_requests(rows: int) -> None:
    """No request, one, and two without anything in common are no special cases."""
    assert diagnose(*flat([text(row, 50) for row in range(rows)])) is None
