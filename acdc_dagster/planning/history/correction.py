"""Predictions corrected by measured runs, with an error that shrinks as runs are added.

The logarithm of measured over predicted time is taken as a sum of independent normal effects: of
the GPU with the model, of the engine's version on it, of the configuration, of the configuration at
one length of prompts and answers, and of the single run. The best linear unbiased prediction of
such a sum (Henderson 1975) is a Gaussian process whose covariance adds the variances of the effects
that two runs share. So a configuration that was never run still learns from others on its GPU.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.gpus import Gpu, Pool
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.makespan import Prediction, predict
from acdc_dagster.planning.cost.workload import Workload, uniform
from acdc_dagster.planning.history.runs import Run
from acdc_dagster.planning.shapes.model import ModelShape

Floats = NDArray[np.float64]

# Standard deviations of the logarithm of time; assumptions, but for that of the GPU, which stands
# in the table of GPUs.
_OF_VERSION = 0.10
_OF_CONFIGURATION = 0.15
_OF_LENGTHS = 0.10
_OF_RUN = 0.10
_HALF_LIFE_DAYS = 30.0  # after which a run counts half
# Workers on the processors of one machine slow one another down; those on GPUs of their own do not.
_SHARED = "CPU"


@dataclass(frozen=True)
class _Effects:
    """What a run shares with others: the keys of its effects."""

    gpu: Hashable
    version: Hashable
    configuration: Hashable
    lengths: Hashable


class Correction:
    """Measured runs of one model, ready to correct predictions for it.

    Args:
        shape: The model.
        gpus: By the planner's names.
        runs: The newest first; those that the cost model finds no room or no work for say nothing.
        now: What the age of a run is told from.
    """

    def __init__(
        self, shape: ModelShape, gpus: dict[str, Gpu], runs: Sequence[Run], now: datetime
    ) -> None:
        ratios = [(run, _log_ratio(shape, gpus[run.gpu], run)) for run in runs]
        known = [(run, ratio) for run, ratio in ratios if ratio is not None]
        self._gpus = gpus
        self._effects = [_effects_of(run) for run, _ in known]
        self._tried = Counter(each.configuration for each in self._effects)
        self._known = {each.gpu for each in self._effects}
        self._newest = {run.gpu: run.engine for run, _ in reversed(known)}
        days = np.array([(now - run.finished_at).total_seconds() / 86400 for run, _ in known])
        noise = _OF_RUN**2 * 2.0 ** (np.maximum(days, 0.0) / _HALF_LIFE_DAYS)
        covariance = self._covariance(self._effects, self._effects) + np.diag(noise)
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ np.array([ratio for _, ratio in known])

    def of(self, found: Sequence[Prediction], job: Workload) -> list[Prediction]:
        """The predictions, in the same order, with corrected times, their errors and sources."""
        asked = [self._effects_of(each, job) for each in found]
        between = self._covariance(asked, self._effects)
        means = between @ self._weights
        prior = np.array([self._variance(each) for each in asked])
        explained = np.einsum("ij,jk,ik->i", between, self._inverse, between)
        errors = np.sqrt(np.maximum(prior - explained, 0.0))
        return [self._corrected(*each) for each in zip(found, asked, means, errors, strict=True)]

    def _corrected(
        self, each: Prediction, asked: _Effects, mean: float, error: float
    ) -> Prediction:
        factor = math.exp(mean)
        same, near = self._tried[asked.configuration], asked.gpu in self._known
        seconds = each.start_seconds + (each.seconds - each.start_seconds) * factor
        return replace(
            each,
            step_seconds=each.step_seconds * factor,
            prefill_rate=each.prefill_rate / factor,
            decode_rate=each.decode_rate / factor,
            seconds=seconds,
            cost=None if each.cost is None else each.cost * seconds / each.seconds,
            error=float(error),
            measured=same,
            source="history" if same else "roofline x history" if near else "roofline",
        )

    def _effects_of(self, each: Prediction, job: Workload) -> _Effects:
        layout, gpu = each.layout, each.pool.name
        count = max(job.requests, 1)
        configuration = (
            gpu,
            layout.tensor,
            layout.expert if layout.lockstep == 1 else (layout.expert, layout.data),
            layout.pipeline,
            each.limits.sequences,
            each.limits.tokens,
            layout.data if gpu == _SHARED else None,
        )
        answer = (job.decode_steps + job.requests) / count
        lengths = _bucket(job.prompt_tokens / count), _bucket(answer)
        return _Effects(gpu, (gpu, self._newest.get(gpu)), configuration, (configuration, lengths))

    def _variance(self, effects: _Effects) -> float:
        of_gpu = self._gpus[str(effects.gpu)].uncertainty
        return of_gpu**2 + _OF_VERSION**2 + _OF_CONFIGURATION**2 + _OF_LENGTHS**2

    def _covariance(self, some: Sequence[_Effects], others: Sequence[_Effects]) -> Floats:
        of_gpu = np.array([self._gpus[str(each.gpu)].uncertainty ** 2 for each in some])
        same = _same([each.gpu for each in some], [each.gpu for each in others])
        total = same * of_gpu[:, None]
        for name, deviation in (
            ("version", _OF_VERSION),
            ("configuration", _OF_CONFIGURATION),
            ("lengths", _OF_LENGTHS),
        ):
            keys = ([getattr(each, name) for each in side] for side in (some, others))
            total = total + deviation**2 * _same(*keys)
        return total


def _same(some: Sequence[Hashable], others: Sequence[Hashable]) -> Floats:
    """1 where the keys are equal, else 0; float64[some, others]."""
    numbers = {key: at for at, key in enumerate(dict.fromkeys([*some, *others]))}
    left = np.array([numbers[key] for key in some], dtype=np.int64)
    right = np.array([numbers[key] for key in others], dtype=np.int64)
    return (left[:, None] == right[None, :]).astype(np.float64)


def _effects_of(run: Run) -> _Effects:
    settings, count = run.settings, max(run.requests, 1)
    configuration = (
        run.gpu,
        settings.tensor_parallel,
        settings.expert_parallel,
        1,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        run.replicas if run.gpu == _SHARED else None,
    )
    lengths = _bucket(run.prompt_tokens / count), _bucket(run.completion_tokens / count)
    return _Effects(run.gpu, (run.gpu, run.engine), configuration, (configuration, lengths))


def _bucket(tokens: float) -> int:
    """Lengths within about a factor of four are of one bucket."""
    return math.floor(math.log(max(tokens, 1.0), 4) + 0.5)


def _log_ratio(shape: ModelShape, gpu: Gpu, run: Run) -> float | None:
    """Logarithm of the time a run took over the one predicted for requests of its mean size."""
    settings = run.settings
    layout = Layout(settings.tensor_parallel, 1, settings.expert_parallel)
    job = uniform(run.requests, run.prompt_tokens, run.cached_tokens, run.completion_tokens)
    found = predict(shape, Pool(run.gpu, gpu, layout.gpus), layout, job, run.limits)
    if not isinstance(found, Prediction) or found.seconds <= found.start_seconds:
        return None
    return math.log(run.seconds / (found.seconds - found.start_seconds))
