"""The sample that a job is judged by: how many requests, and which."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.planning.strata import sizes_of, stratum_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SHARE = 0.05
_Z = NormalDist().inv_cdf(0.975)  # two-sided, 95 %
_TAIL = 0.95  # the quantile whose rank is bounded
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Wanted:
    """How near a sample is to come to the job, at 95 % confidence.

    Attributes:
        mean: Relative error of the mean.
        rank: Error of the rank of the 95th percentile, 0 to 1: with 0.025 what the sample calls
            that lies between the job's 92.5th and 97.5th.
    """

    mean: float = 0.10
    rank: float = 0.025


def needed(rows: int, variation: float, wanted: Wanted | None = None) -> float:
    """Requests to draw of `rows` for an error as wanted.

    With a coefficient of variation c and z = 1.96, a mean needs n0 = (z c / error)^2 draws, a rank
    n0 = z^2 p (1 - p) / error^2; of a finite job n0 / (1 + (n0 - 1) / rows) do (Cochran, Sampling
    Techniques, 4.7 and 3.4).

    Args:
        rows: Of the job.
        variation: Standard deviation of the answers' tokens over their mean.
        wanted: The errors.
    """
    wanted = wanted or Wanted()
    mean = (_Z * variation / wanted.mean) ** 2
    rank = _Z**2 * _TAIL * (1 - _TAIL) / wanted.rank**2
    most = max(mean, rank, 1.0)
    return most / (1 + (most - 1) / rows) if rows else 0.0


def sample_size(rows: int, variation: float = 1.0, wanted: Wanted | None = None) -> int:
    """Requests to sample: 5 %, or what the wanted error needs if that is more.

    Where that is over half of a job all of it is taken: the rest would be another small run.
    """
    size = max(math.ceil(SHARE * rows), math.ceil(needed(rows, variation, wanted)))
    return rows if size > rows / 2 else size


def allocate(sizes: Ints, total: int, spread: Floats | None = None) -> Ints:
    """How many of `total` draws each stratum gets, at least one and no more than it has.

    In proportion to N_h S_h (Neyman 1934), which makes the error of the mean least; to N_h where
    the spreads are not known. What is left by rounding goes to the largest remainders.

    Args:
        sizes: int64[H], requests of each stratum, all from 1.
        total: Draws, from H to the sum of `sizes`.
        spread: float64[H], standard deviation of the answers of each stratum.
    """
    weight = sizes * (np.ones(len(sizes)) if spread is None else spread)
    # One without spread in what was seen still gets its share once the others are used up.
    weight = np.maximum(weight, max(float(weight.max()), 1.0) * _NEGLIGIBLE)
    low, high = 0.0, float((sizes / weight).max())  # of one factor for all, 1 <= factor w <= N
    while high - low > high * _NEGLIGIBLE:
        middle = (low + high) / 2
        enough = np.clip(middle * weight, 1, sizes).sum() >= total
        low, high = (low, middle) if enough else (middle, high)
    due = np.clip(high * weight, 1, sizes)
    chosen = np.floor(due).astype(np.int64)
    missing = total - int(chosen.sum())
    chosen[np.argsort(chosen - due, kind="stable")[: max(missing, 0)]] += 1
    return chosen


def sample_positions(
    rows: int,
    seed: int = 0,
    size: int | None = None,
    starts: Ints | None = None,
    spread: Floats | None = None,
) -> Ints:
    """Sorted positions of a sample without repeats; the same for the same arguments.

    Uniform within each stratum and not its first rows: in prefix order neighbours are alike.

    Args:
        rows: Of the job.
        seed: Another one draws others.
        size: Draws, raised to one a stratum; by default `sample_size(rows)`.
        starts: First position of each stratum (`strata`); by default the job is one.
        spread: See `allocate`.
    """
    if rows == 0:
        return np.zeros(0, dtype=np.int64)
    starts = np.zeros(1, dtype=np.int64) if starts is None else starts
    size = sample_size(rows) if size is None else size
    sizes = sizes_of(starts, rows)
    drawn = allocate(sizes, min(max(size, len(sizes)), rows), spread)
    dice = np.random.default_rng(seed)
    chosen = np.zeros(rows, dtype=bool)
    for start, count, take in zip(starts.tolist(), sizes.tolist(), drawn.tolist(), strict=True):
        chosen[start + dice.choice(count, take, replace=False)] = True
    return np.flatnonzero(chosen).astype(np.int64)


def sample_weights(positions: Ints, starts: Ints, rows: int) -> Floats:
    """Requests of the job that each of a sample's positions stands for: N_h / n_h of its stratum.

    The weighted mean of a sample is unbiased however its draws were shared out.
    """
    within = stratum_of(starts, positions)
    taken = np.bincount(within, minlength=len(starts))
    return (sizes_of(starts, rows) / np.maximum(taken, 1))[within]
