"""What a sample of a job says of its answers, against the formulas that set its size."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.planning.sample import sample_positions, sample_size, sample_weights
from acdc_dagster.planning.strata import strata
from benchmarks.lengths import Job, jobs, traces

_Z = 1.96
_ROWS = 5_000  # of a job cut out of a trace
_SIZES = [50, 100, 250, 500, 1000]


def errors(data: Path, draws: int) -> list[dict[str, Any]]:
    """For traces and sizes: the error that 95 % of uniform samples keep to, and the formula's.

    Errors of the mean are relative; of the 95th percentile they are of its rank, in points.
    """
    answers = traces(data) | {"mooncake": jobs(data)[-1].answers}
    return [
        _errors(name, np.random.default_rng(0).permutation(lengths)[:_ROWS], size, draws)
        for name, lengths in answers.items()
        for size in _SIZES
    ]


def _errors(name: str, lengths: NDArray[np.int64], size: int, draws: int) -> dict[str, Any]:
    rows, variation = len(lengths), float(lengths.std() / lengths.mean())
    ordered = np.sort(lengths)
    means: list[float] = []
    ranks: list[float] = []
    for seed in range(draws):
        sample = lengths[sample_positions(rows, seed, size)]
        means.append(abs(float(sample.mean() / lengths.mean()) - 1))
        tail = np.quantile(sample, 0.95)
        # Of equal lengths any rank is right: the nearest to 0.95 counts.
        low, high = (float(np.searchsorted(ordered, tail, side)) / rows for side in _SIDES)
        ranks.append(abs(float(np.clip(0.95, low, high)) - 0.95))
    finite = math.sqrt((rows - size) / (rows - 1))
    return {
        "answers": name,
        "variation": variation,
        "sample": size,
        "error_of_mean": float(np.quantile(means, 0.95)),
        "formula": _Z * variation / math.sqrt(size) * finite,
        "rank_of_p95": float(np.quantile(ranks, 0.95)),
        "formula_of_rank": _Z * math.sqrt(0.95 * 0.05 / size) * finite,
    }


_SIDES = ("left", "right")


def by_strata(data: Path, draws: int) -> list[dict[str, Any]]:
    """For jobs in prefix order: the error that 95 % of samples keep to, uniform and in strata."""
    return [_by_strata(job, draws) for job in jobs(data)]


def _by_strata(job: Job, draws: int) -> dict[str, Any]:
    rows, mean = len(job.lcp), job.answers.mean()
    size, starts = sample_size(rows), strata(job.lcp)
    size = size if size < rows else rows // 4
    uniform: list[float] = []
    apart: list[float] = []
    for seed in range(draws):
        at = sample_positions(rows, seed, size)
        uniform.append(abs(float(job.answers[at].mean() / mean) - 1))
        at = sample_positions(rows, seed, size, starts)
        weights = sample_weights(at, starts, rows)
        apart.append(abs(float(np.average(job.answers[at], weights=weights) / mean) - 1))
    found = {
        "uniform": float(np.quantile(uniform, 0.95)),
        "strata": float(np.quantile(apart, 0.95)),
    }
    return {"job": job.name, "requests": rows, "sample": size, "parts": len(starts), **found}
