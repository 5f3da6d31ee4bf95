"""The shared edges of the prefix tree against the prefixes themselves."""

import numpy as np
import pytest
from numpy.typing import NDArray

from acdc_dagster.prefix.examine.tree import shared_edges


def random_paths(seed: int, count: int) -> list[list[int]]:
    """Sorted sequences that branch off one another at random, empty and equal ones among them."""
    dice = np.random.default_rng(seed)
    paths: list[list[int]] = [[], []]
    while len(paths) < count:
        stem = paths[dice.integers(len(paths))]
        fresh = dice.integers(4, size=dice.integers(0, 9)).tolist()
        paths.append(stem[: dice.integers(len(stem) + 1)] + fresh)
    return sorted(paths)


def lcp_of(paths: list[list[int]]) -> NDArray[np.int64]:
    """What each sequence shares with the one before it."""
    lcp = np.zeros(len(paths), dtype=np.int64)
    for at in range(1, len(paths)):
        same = [a == b for a, b in zip(paths[at - 1], paths[at], strict=False)]
        lcp[at] = same.index(False) if False in same else len(same)
    return lcp


@pytest.mark.parametrize("seed", range(50))
def test_each_shared_prefix_lies_on_one_edge(seed: int) -> None:
    """Edges cover what two or more requests have in common, once, with the requests that do."""
    paths = random_paths(seed, 60)
    sharers: dict[tuple[int, ...], list[int]] = {}
    for at, path in enumerate(paths):
        for depth in range(1, len(path) + 1):
            sharers.setdefault(tuple(path[:depth]), []).append(at)
    edges = shared_edges(lcp_of(paths))
    found: dict[tuple[int, ...], list[int]] = {}
    for edge in range(len(edges.top)):
        passing = list(range(edges.first[edge], edges.stop[edge]))
        for depth in range(edges.top[edge] + 1, edges.bottom[edge] + 1):
            prefix = tuple(paths[passing[0]][:depth])
            assert prefix not in found
            found[prefix] = passing
    assert found == {prefix: rows for prefix, rows in sharers.items() if len(rows) > 1}


@pytest.mark.parametrize("seed", range(50))
def test_a_walk_up_from_the_deepest_edge_is_the_path(seed: int) -> None:
    """Parents come first, join end to end up to the root, and pass the request."""
    paths = random_paths(seed, 60)
    lcp = lcp_of(paths)
    edges = shared_edges(lcp)
    for at, edge in enumerate(edges.deepest.tolist()):
        depth = max([*lcp[at : at + 2].tolist()])
        while edge >= 0:
            assert edges.first[edge] <= at < edges.stop[edge]
            assert edges.bottom[edge] == depth
            depth = edges.top[edge]
            assert edges.parent[edge] < edge
            edge = edges.parent[edge]
        assert depth == 0


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_no_edges(rows: int) -> None:
    """Where nothing is shared there are none."""
    edges = shared_edges(np.zeros(rows, dtype=np.int64))
    assert len(edges.top) == len(edges.parent) == 0
    assert edges.deepest.tolist() == [-1] * rows
