"""Strata: where the prefix order is cut into ranges that begin alike."""

import numpy as np
import pytest

from acdc_dagster.planning.strata import sizes_of, strata, stratum_of


def order(templates: list[int], shared: int = 200) -> np.ndarray:
    """LCP array of so many requests of each template; all begin with the same 20 tokens."""
    lcp = np.concatenate([np.full(size, shared) for size in templates])
    lcp[np.cumsum([0, *templates[:-1]])] = 20
    lcp[0] = 0
    return lcp


def test_templates_are_apart() -> None:
    """The border of each of thirty templates is a border of the strata."""
    templates = [10 + 7 * number % 40 for number in range(30)]
    starts = strata(order(templates), 0.1)
    assert set(starts) <= set(np.cumsum([0, *templates]))
    assert sizes_of(starts, sum(templates)).max() <= 0.1 * sum(templates)


def test_a_template_that_is_the_job_is_cut_by_its_subtrees() -> None:
    """Also one whose requests share nothing more, into ranges of about equal size."""
    lcp = order([4000])
    lcp[[517, 1804, 2300]] = 150
    starts = strata(lcp, 0.25)
    assert {517, 1804, 2300} <= set(starts)
    even = sizes_of(strata(order([4000]), 0.05), 4000)
    assert even.min() >= 50
    assert even.max() <= 200


@pytest.mark.parametrize("seed", range(10))
def test_strata_are_ranges_of_bounded_size(seed: int) -> None:
    """From the first row on, in order, none over its share and none under a quarter of it."""
    dice = np.random.default_rng(seed)
    rows = int(dice.integers(200, 3000))
    lcp = dice.integers(0, dice.integers(1, 1000), rows)
    starts = strata(lcp, 0.05)
    sizes = sizes_of(starts, rows)
    assert starts[0] == 0
    assert sizes.sum() == rows
    assert sizes.max() <= rows // 20
    assert sizes.min() >= rows // 20 // 4


def test_small_jobs_have_strata_too() -> None:
    """None for nothing, one a request where five percent is less than one."""
    assert strata(np.zeros(0, dtype=np.int64)).tolist() == []
    assert strata(np.array([0, 5, 5])).tolist() == [0, 1, 2]


def test_the_stratum_of_a_position() -> None:
    """A start is of its own stratum."""
    assert stratum_of(np.array([0, 4, 9]), np.array([0, 3, 4, 8, 9, 50])).tolist() == [
        *(0, 0, 1, 1, 2, 2)
    ]
