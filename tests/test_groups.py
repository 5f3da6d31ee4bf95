"""The largest shared prefixes of a job, against what sharing them alone saves."""

import numpy as np
import pytest
from test_tree import lcp_of, random_paths

from acdc_dagster.prefix.examine.groups import SharedPrefix, top_groups
from acdc_dagster.prefix.order import sharing


def saved(groups: list[SharedPrefix], rows: int) -> int:
    """Tokens not computed if just these prefixes are kept: each request uses its deepest one."""
    reach = np.zeros(rows, dtype=np.int64)
    for group in groups:
        at = slice(group.first, group.first + group.requests)
        reach[at] = np.maximum(reach[at], group.tokens)
    kept = {(group.first, group.requests, group.tokens) for group in groups}
    once = 0  # each prefix is computed once, from the end of the one above it
    for first, requests, tokens in kept:
        above = [
            other.tokens
            for other in groups
            if other.first <= first
            and first + requests <= other.first + other.requests
            and other.tokens < tokens
        ]
        once += tokens - max(above, default=0)
    return int(reach.sum()) - once


def job(*groups: tuple[int, int], item: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Requests in groups of (requests, shared tokens), each with an item of its own."""
    lcp = np.concatenate([np.append(0, np.full(rows - 1, tokens)) for rows, tokens in groups])
    lengths = np.concatenate([np.full(rows, tokens + item) for rows, tokens in groups])
    return lcp, lengths


def test_groups_come_by_what_they_save() -> None:
    """A long prefix of few requests can be worth more than a short one of many."""
    lcp, lengths = job((50, 10), (5, 900), (20, 100))
    assert top_groups(lcp, lengths) == [
        SharedPrefix(first=50, requests=5, tokens=900, tokens_saved=3600),
        SharedPrefix(first=55, requests=20, tokens=100, tokens_saved=1900),
        SharedPrefix(first=0, requests=50, tokens=10, tokens_saved=490),
    ]
    assert len(top_groups(lcp, lengths, at_most=2)) == 2
    assert len(top_groups(lcp, lengths, min_share=0.1)) == 2


def test_what_is_nearly_its_parent_is_not_listed() -> None:
    """All share 800 tokens; most share 4 more: one prefix, not two."""
    lcp, lengths = job((1000, 800))
    lcp[101:] += 4
    found = top_groups(lcp, lengths)
    assert [(group.requests, group.tokens) for group in found] == [(1000, 800)]


def test_a_prefix_within_a_prefix_is_listed_for_what_it_adds() -> None:
    """Below a prefix of all requests, half of them share as much again."""
    lcp, lengths = job((1000, 400))
    lcp[501:] += 300
    assert top_groups(lcp, lengths) == [
        SharedPrefix(first=0, requests=1000, tokens=400, tokens_saved=999 * 400),
        SharedPrefix(first=500, requests=500, tokens=700, tokens_saved=499 * 300),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_what_the_list_saves(seed: int) -> None:
    """The parts add up to what the prefixes save together, and all edges to all that is shared."""
    paths = random_paths(seed, 80)
    lcp, lengths = lcp_of(paths), np.array([len(path) for path in paths])
    for at_most in (1, 2, 5, 1000):
        groups = top_groups(lcp, lengths, at_most, min_share=0.0)
        assert sum(group.tokens_saved for group in groups) == saved(groups, len(lcp))
        gains = [group.tokens_saved for group in groups]
        assert gains == sorted(gains, reverse=True)
        for group in groups:  # they are what they say
            at = slice(group.first, group.first + group.requests)
            assert len({tuple(path[: group.tokens]) for path in paths[at]}) == 1
    assert sum(gains) == lcp.sum()
    assert sum(gains) / lengths.sum() == pytest.approx(sharing(lcp, lengths))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_nothing_shared(rows: int) -> None:
    """Without sharing there are no groups."""
    assert top_groups(np.zeros(rows, dtype=np.int64), np.full(rows, 9)) == []
