"""Prefix order against the tree it stands for, and the closed hit rate against the simulation."""

from collections.abc import Sequence
from itertools import pairwise, takewhile

import numpy as np
import pytest
from numpy.typing import NDArray

from acdc_dagster.prefix import order as flat
from acdc_dagster.prefix.examine.cache import predicted_hit_rate, simulated_hit_rate
from acdc_dagster.prefix.order import common_prefix, hit_rate, sharing
from acdc_dagster.prefix.sequences import Sequences, Tokens

SEEDS = range(8)


def sequence(*ids: int) -> Tokens:
    """A token sequence."""
    return np.asarray(ids, dtype=np.int32)


def random_tree(seed: int, count: int = 60) -> list[Tokens]:
    """Sequences that share prefixes at random: empty ones, equal ones and large ids among them."""
    dice = np.random.default_rng(seed)
    ids = np.array([0, 1, 255, 256, 65_535, 65_536, 151_000, 2**31 - 1], dtype=np.int32)
    found: list[Tokens] = [sequence(), sequence()]
    while len(found) < count:
        stem = found[dice.integers(len(found))]
        stem = stem[: dice.integers(len(stem) + 1)]
        found.append(np.concatenate([stem, dice.choice(ids, dice.integers(0, 12))]))
    return [found[at] for at in dice.permutation(count)]


def prefix_order(tokens: Sequence[Tokens]) -> list[int]:
    """`order.prefix_order` of these sequences."""
    return flat.prefix_order(Sequences.of(tokens)).tolist()


def shared_with_previous(tokens: Sequence[Tokens]) -> NDArray[np.int64]:
    """`order.shared_with_previous` of these sequences."""
    return flat.shared_with_previous(Sequences.of(tokens))


def in_order(tokens: Sequence[Tokens]) -> list[Tokens]:
    """The sequences in prefix order."""
    return [tokens[at] for at in prefix_order(tokens)]


def lengths_of(tokens: Sequence[Tokens]) -> NDArray[np.int64]:
    """The length of each sequence."""
    return np.array([len(ids) for ids in tokens], dtype=np.int64)


def nodes(tokens: Sequence[Tokens]) -> set[tuple[int, ...]]:
    """The nodes of the prefix tree without its root, each as the path to it."""
    return {tuple(ids[:depth].tolist()) for ids in tokens for depth in range(1, len(ids) + 1)}


@pytest.mark.parametrize("seed", SEEDS)
def test_prefix_order_is_lexicographic(seed: int) -> None:
    """The order is that of the lists of ids, and equal sequences keep their places."""
    tokens = random_tree(seed)
    order = prefix_order(tokens)
    assert order == sorted(range(len(tokens)), key=lambda at: (tokens[at].tolist(), at))


def test_ids_compare_as_numbers() -> None:
    """Ids of different widths are not compared by their bytes as they lie in memory."""
    ids = [[65_536], [256], [1, 0], [255], [], [1]]
    ordered = in_order([sequence(*some) for some in ids])
    assert [some.tolist() for some in ordered] == [[], [1], [1, 0], [255], [256], [65_536]]


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_sequences(count: int) -> None:
    """No sequence, and one, are no special cases."""
    tokens = [sequence(1, 2, 3)] * count
    lcp, lengths = shared_with_previous(tokens), lengths_of(tokens)
    assert prefix_order(tokens) == list(range(count))
    assert lcp.tolist() == [0] * count
    assert (sharing(lcp, lengths), hit_rate(lcp, lengths, 1)) == (0, 0)
    assert simulated_hit_rate(lcp, lengths, 1, 100) == 0
    assert predicted_hit_rate(lcp, lengths, 1, 100) == 0


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        ([], [], 0),
        ([], [1], 0),
        ([1], [2], 0),
        ([1, 2], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3, 4], [1, 2, 9, 4], 2),
        ([65_536, 1], [65_536, 2], 1),
    ],
)
def test_common_prefix(left: list[int], right: list[int], common: int) -> None:
    """The leading tokens that are equal are counted, from either side."""
    assert common_prefix(sequence(*left), sequence(*right)) == common
    assert common_prefix(sequence(*right), sequence(*left)) == common


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_with_previous_in_any_order(seed: int) -> None:
    """The LCP array counts what each sequence shares with the one before it, sorted or not."""
    tokens = random_tree(seed)
    expected = [0] + [
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
        for left, right in pairwise(tokens)
    ]
    assert shared_with_previous(tokens).tolist() == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_sharing_counts_the_nodes_of_the_tree(seed: int) -> None:
    """Shared tokens are all tokens minus the distinct nodes of the prefix tree."""
    tokens = in_order(random_tree(seed))
    lcp, lengths = shared_with_previous(tokens), lengths_of(tokens)
    total, distinct = int(lengths.sum()), len(nodes(tokens))
    assert lcp.sum() == total - distinct
    assert sharing(lcp, lengths) == pytest.approx(1 - distinct / total)
    assert 0 < sharing(lcp, lengths) < 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_the_closed_hit_rate_is_the_simulated_one(seed: int, block_size: int) -> None:
    """In prefix order a cache that is large enough reaches the bound, and no order passes it."""
    tokens = in_order(random_tree(seed))
    lcp, lengths = shared_with_previous(tokens), lengths_of(tokens)
    bound, room = hit_rate(lcp, lengths, block_size), int(lengths.sum()) + block_size
    assert simulated_hit_rate(lcp, lengths, block_size, room) == pytest.approx(bound)
    assert 0 <= bound < 1
    dice = np.random.default_rng(seed)
    for _ in range(5):
        order = dice.permutation(len(tokens))
        found = simulated_hit_rate(lcp, lengths, block_size, room, order)
        assert found <= bound + 1e-12
        small = simulated_hit_rate(lcp, lengths, block_size, 4 * block_size, order)
        assert small <= bound + 1e-12


@pytest.mark.parametrize(
    ("lengths", "lcp", "block_size", "hits"),
    [
        ([8, 8], [0, 8], 4, 4),  # the last token of a prompt is always computed
        ([8, 9], [0, 8], 4, 8),
        ([8, 9], [0, 7], 4, 4),  # whole blocks only
        ([3, 3], [0, 3], 4, 0),
        ([1, 1], [0, 1], 1, 0),
        ([0, 2, 2], [0, 0, 1], 1, 1),
    ],
)
def test_what_an_engine_can_hit(
    lengths: list[int], lcp: list[int], block_size: int, hits: int
) -> None:
    """Whole blocks are reused, and never the last token of a prompt."""
    found = hit_rate(np.array(lcp), np.array(lengths), block_size)
    assert found == pytest.approx(hits / sum(lengths))


def test_a_small_cache_forgets_the_deepest_block_of_the_oldest_path() -> None:
    """Eviction takes the least recently used path first, and of a path its end before its root."""
    lcp, lengths = np.array([0, 4, 0]), np.array([5, 5, 5])  # in blocks of 2: ab, ab, cd
    apart = np.array([0, 2, 1])
    for blocks, hits in [(4, 2), (3, 1), (2, 0)]:
        found = simulated_hit_rate(lcp, lengths, 2, 2 * blocks, order=apart)
        assert found == pytest.approx(2 * hits / 15)


def test_prefix_order_needs_little_cache() -> None:
    """Where groups of requests come mixed, sorting brings back what a small cache loses."""
    groups = [sequence(*range(100 * group, 100 * group + 32)) for group in range(8)]
    tokens = [np.append(groups[n % 8], 10_000 + n).astype(np.int32) for n in range(64)]
    order = prefix_order(tokens)
    ordered = [tokens[at] for at in order]
    lcp, lengths = shared_with_previous(ordered), lengths_of(ordered)
    mixed = np.argsort(order)
    bound = hit_rate(lcp, lengths, 16)
    assert bound == pytest.approx(56 * 32 / (64 * 33))
    assert simulated_hit_rate(lcp, lengths, 16, 64) == pytest.approx(bound)
    assert simulated_hit_rate(lcp, lengths, 16, 64, order=mixed) == 0
