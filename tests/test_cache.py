"""The simulated prefix cache against one written block by block, and the prediction against it."""

from collections import OrderedDict

import numpy as np
import pytest
from numpy.typing import NDArray
from test_tree import lcp_of, random_paths

from acdc_dagster.prefix.examine.cache import predicted_hit_rate, simulated_hit_rate
from acdc_dagster.prefix.order import hit_rate

Ints = NDArray[np.int64]


def hits_block_by_block(paths: list[list[int]], block_size: int, capacity: int) -> int:
    """Hit tokens of an LRU cache of `capacity` blocks, each known by the tokens up to its end."""
    cached: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for path in paths:
        ends = range(block_size, len(path) + 1, block_size)
        blocks = [tuple(path[:end]) for end in ends]
        found = [block in cached and len(block) < len(path) for block in blocks]
        hits += block_size * (found.index(False) if False in found else len(found))
        for block in reversed(blocks):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > capacity:
            cached.popitem(last=False)
    return hits


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_the_simulation_is_the_cache(seed: int, block_size: int) -> None:
    """Hits are those of a plain LRU cache, for any order and any room."""
    paths = random_paths(seed, 60)
    lcp, lengths = lcp_of(paths), np.array([len(path) for path in paths])
    dice = np.random.default_rng(seed)
    for capacity in (1, 2, 3, 5, 8, 13, 21, 34, 55, 10_000):
        order = dice.permutation(len(paths))
        expected = hits_block_by_block([paths[at] for at in order], block_size, capacity)
        found = simulated_hit_rate(lcp, lengths, block_size, capacity * block_size, order)
        assert found == pytest.approx(expected / lengths.sum())
        in_order = hits_block_by_block(paths, block_size, capacity)
        assert simulated_hit_rate(lcp, lengths, block_size, capacity * block_size) == pytest.approx(
            in_order / lengths.sum()
        )


def groups_of(
    members: Ints, shared: Ints, item: Ints, subgroups: int = 1, more: int = 0
) -> tuple[Ints, Ints]:
    """A tree of two levels: groups of so many members, each with subgroups that share `more`."""
    group = np.repeat(np.arange(len(members)), members)
    within = np.arange(len(group)) - np.repeat(np.cumsum(members) - members, members)
    child = within * subgroups // np.repeat(members, members)
    same = np.append(False, group[1:] == group[:-1])
    alike = same & np.append(False, child[1:] == child[:-1])
    lcp = same * shared[group] + alike * more
    return lcp.astype(np.int64), shared[group] + more + item


def made(kind: str, rows: int) -> tuple[Ints, Ints]:
    """LCP and lengths of a job of the kind, made with a fixed seed."""
    dice = np.random.default_rng(7)
    match kind:
        case "few prompts of unequal weight, with examples":
            members = (rows / np.arange(1, 21) / np.sum(1 / np.arange(1, 21))).astype(np.int64)
            item = dice.integers(50, 400, members.sum())
            return groups_of(members, dice.integers(800, 1500, 20), item, subgroups=5, more=300)
        case "documents with questions":
            members = np.full(rows // 20, 20)
            item = dice.integers(10, 60, members.sum())
            return groups_of(members, dice.integers(500, 3000, len(members)), item)
        case "one rubric":
            return groups_of(np.array([rows]), np.array([4000]), dice.integers(50, 500, rows))
        case "repeated requests":
            members = dice.integers(1, 4, rows // 2)
            lcp, lengths = groups_of(members, dice.integers(3, 40, len(members)) * 16, np.int64(0))
            return lcp, lengths
        case _:
            members = dice.integers(1, 60, rows // 30)
            item = dice.integers(50, 400, members.sum())
            return groups_of(members, np.full(len(members), 20), item, subgroups=3, more=20)


@pytest.mark.parametrize("capacity", [65_536, 262_144, 1_048_576])
@pytest.mark.parametrize(
    "kind",
    [
        "few prompts of unequal weight, with examples",
        "documents with questions",
        "one rubric",
        "repeated requests",
        "little in common",
    ],
)
def test_the_prediction_for_a_random_order(kind: str, capacity: int) -> None:
    """It is within half a point of the mean over some random orders."""
    lcp, lengths = made(kind, 10_000)
    dice = np.random.default_rng(1)
    simulated = [
        simulated_hit_rate(lcp, lengths, 16, capacity, dice.permutation(len(lcp))) for _ in range(6)
    ]
    predicted = predicted_hit_rate(lcp, lengths, 16, capacity)
    assert predicted == pytest.approx(np.mean(simulated), abs=0.005)


@pytest.mark.parametrize("kind", ["documents with questions", "repeated requests"])
def test_the_prediction_of_a_cache_that_forgets_nothing(kind: str) -> None:
    """It is the bound, which no order passes and each reaches."""
    lcp, lengths = made(kind, 2000)
    room = int(lengths.sum())
    assert predicted_hit_rate(lcp, lengths, 16, room) == pytest.approx(hit_rate(lcp, lengths, 16))
