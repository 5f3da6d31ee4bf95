"""The order from both ends: it is one, keeps what it says, and mixes the two kinds of work."""

import numpy as np
import pytest
from numpy.typing import NDArray

from acdc_dagster.planning.dual_scan import dual_scan

Floats = NDArray[np.float64]


def mixed_job(rows: int, seed: int) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Groups of 20 that share 30 tokens; a group has long prompts or long answers."""
    dice = np.random.default_rng(seed)
    group = np.arange(rows) // 20
    lcp = np.where(np.arange(rows) % 20 == 0, 0, 30)
    long_answers = np.sort(dice.random(rows // 20 + 1) < 0.4)[group]  # in stretches of a kind
    prompt = np.where(long_answers, 100, 2000) + dice.integers(0, 50, rows)
    answer = np.where(long_answers, 1500, 20) + dice.integers(0, 20, rows)
    memory = prompt * answer + answer**2 / 2
    return lcp, (prompt - lcp + answer).astype(np.float64), memory.astype(np.float64)


def imbalance(compute: Floats, memory: Floats) -> float:
    """How far one kind of work gets ahead of the other, as a share of the job."""
    ahead = np.cumsum(compute) / compute.sum() - np.cumsum(memory) / memory.sum()
    return float(np.abs(ahead).max())


@pytest.mark.parametrize("seed", range(5))
def test_both_kinds_of_work_progress_alike(seed: int) -> None:
    """In prefix order one kind comes long before the other; from both ends they come together."""
    lcp, compute, memory = mixed_job(4000, seed)
    found = dual_scan(lcp, compute, memory, max_loss=0)
    assert sorted(found.order.tolist()) == list(range(4000))
    assert found.kept == 1
    assert imbalance(compute, memory) > 0.3
    assert imbalance(compute[found.order], memory[found.order]) < 0.02


@pytest.mark.parametrize("max_loss", [0.0, 0.01, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_no_more_is_lost_than_allowed(seed: int, max_loss: float) -> None:
    """Requests follow the one they share with, but for what the cuts may cost."""
    lcp, compute, memory = mixed_job(2000, seed)
    lcp[1:] += np.random.default_rng(seed).integers(0, 9, 1999)  # no cut is free
    found = dual_scan(lcp, compute, memory, max_loss)
    place = np.argsort(found.order)
    apart = np.append(False, place[1:] < place[:-1])  # runs before the one it shares with
    assert sorted(found.order.tolist()) == list(range(2000))
    assert 1 - max_loss - 1e-12 <= found.kept <= 1
    assert lcp[apart].sum() <= (1 - found.kept) * lcp.sum() + 1e-6


def test_one_prefix_is_cut_evenly() -> None:
    """Where all borders share alike, cuts are spread, and the two kinds still mix."""
    _, compute, memory = mixed_job(4000, 0)
    lcp = np.full(4000, 500)
    lcp[0] = 0
    found = dual_scan(lcp, compute, memory, max_loss=0.03)
    assert 0.97 <= found.kept < 0.98
    assert imbalance(compute[found.order], memory[found.order]) < 0.1


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_hardly_any_requests(rows: int) -> None:
    """No request and one are no special cases."""
    found = dual_scan(np.zeros(rows, dtype=np.int64), np.ones(rows), np.ones(rows))
    assert sorted(found.order.tolist()) == list(range(rows))
    assert found.kept == 1
