"""Which requests the engine gets, and how the one that kills it is found."""

import random
from collections.abc import Iterator

import pytest

from acdc_dagster.inference.dispatch import Dispatch
from acdc_dagster.inference.engines.protocol import Request


def requests(count: int) -> Iterator[Request]:
    for number in range(count):
        yield Request(f"r{number}", b"\0\0", 1, "{}", 8, 0)


def names(taken: list[Request]) -> list[str]:
    return [request.request_hash for request in taken]


def test_the_window_is_kept_full_in_the_given_order() -> None:
    """Twice as many as run at once; each answer makes room for one more."""
    dispatch = Dispatch(requests(10), max_num_seqs=2, request_seconds=None)
    assert names(dispatch.take()) == ["r0", "r1", "r2", "r3"]
    assert dispatch.take() == []
    assert dispatch.answered("r1")
    assert names(dispatch.take()) == ["r4"]
    assert not dispatch.answered("r1")


def test_each_choice_of_a_sampled_request_takes_a_place() -> None:
    """Eight for a request with n = 8; a greedy one is computed once, whatever its n."""
    asked = [(8, 1.0), (8, 0.0), (8, 1.0), (8, 0.0), (1, 1.0), (1, 0.0)]
    samplings = [f'{{"max_tokens": 4, "temperature": {heat}, "n": {n}}}' for n, heat in asked]
    made = (Request(f"r{n}", b"\0\0", 1, text, 4, 0) for n, text in enumerate(samplings))
    dispatch = Dispatch(made, max_num_seqs=6, request_seconds=None)
    assert names(dispatch.take()) == ["r0", "r1", "r2"]  # 8 + 1 are fewer than 12
    assert dispatch.answered("r1")
    assert dispatch.take() == []
    assert dispatch.answered("r0")
    assert names(dispatch.take()) == ["r3", "r4", "r5"]
    assert dispatch.waiting() == ["r3", "r4", "r5"]  # the first one has all six places
    assert dispatch.given == 1


def run(count: int, size: int, killers: set[str], chance: float, seed: int) -> tuple[dict, int]:
    """Drive an engine that dies of some requests, and now and then of nothing.

    Returns:
        How often each request was answered or given up (True if given up), and deaths.
    """
    chosen = random.Random(seed)
    dispatch = Dispatch(requests(count), size, None)
    ended: dict[str, list[bool]] = {}
    engine: list[str] = []
    deaths = 0
    while dispatch.more:
        engine += names(dispatch.take())
        running = engine[:size]
        if killers & set(running) or chosen.random() < chance:
            deaths += 1
            engine = []
            culprit = dispatch.died()
            if culprit is not None:
                ended.setdefault(culprit, []).append(True)
            continue
        for name in chosen.sample(running, chosen.randint(0, len(running))):
            engine.remove(name)
            assert dispatch.answered(name)
            ended.setdefault(name, []).append(False)
    return ended, deaths


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("killers", [set(), {"r0"}, {"r17"}, {"r3", "r4", "r39"}])
def test_each_request_ends_once_and_only_killers_are_given_up(killers: set[str], seed: int) -> None:
    """Halving finds each killer within about as many deaths as halvings."""
    ended, deaths = run(40, 4, killers, 0.0, seed)
    assert ended == {f"r{n}": [f"r{n}" in killers] for n in range(40)}
    assert deaths <= len(killers) * 6


@pytest.mark.parametrize("seed", range(20))
def test_an_engine_that_dies_of_nothing_costs_no_request(seed: int) -> None:
    """Random deaths in mid-work leave every request answered once."""
    ended, deaths = run(2000, 8, set(), 0.02, seed)
    assert ended == {f"r{n}": [False] for n in range(2000)}
    assert deaths > 0


def test_requests_that_cannot_have_begun_are_taken_back() -> None:
    """The engine begins them in order, so only the last ones are."""
    dispatch = Dispatch(requests(10), max_num_seqs=2, request_seconds=None)
    dispatch.take()
    assert dispatch.waiting() == ["r2", "r3"]
    assert dispatch.given == 2


def test_a_request_is_overdue_after_its_time() -> None:
    """Overdue requests are taken back, and a late answer is nobody's."""
    dispatch = Dispatch(requests(1), max_num_seqs=2, request_seconds=0.0)
    dispatch.take()
    while not (late := dispatch.overdue()):
        pass
    assert late == ["r0"]
    assert not dispatch.answered("r0")
    assert not dispatch.more
