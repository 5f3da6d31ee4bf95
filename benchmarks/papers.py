"""What ACDC says of speculation and of idle prefill instances, by the planner's formulas."""

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.gpus import Pool, known_gpus
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.makespan import EngineLimits, Prediction, predict
from acdc_dagster.planning.cost.workload import workload
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import model_shape
from acdc_dagster.planning.speculation.acceptance import assumed
from acdc_dagster.planning.speculation.drafter import Drafter, roofline
from acdc_dagster.planning.speculation.goodput import Running, gains
from benchmarks import sharing
from benchmarks.models import CONFIGS

_QWEN = CONFIGS["Qwen/Qwen3-32B"]
# One layer of the model's own sizes and a vocabulary of 32,000, as published heads have.
_HEAD = {**_QWEN, "num_hidden_layers": 1, "vocab_size": 32_000}
_ACCEPTANCE = 0.7
_LIMITS = EngineLimits(256, 8192)
_ANSWER = 500


def speculation(lengths: list[int]) -> list[dict[str, Any]]:
    """Goodput of Qwen3-32B with an EAGLE-3 head on four H20, over that without, by prompt length.

    While answers are generated, by tokens of a draft; and the best of them in the middle of a job,
    where prompts are computed in the same steps.
    """
    shape = model_shape(Config.of(_QWEN, "Qwen3-32B"))
    head = Drafter("eagle3", "head", model_shape(Config.of(_HEAD, "head")))
    layout, gpu = Layout(4), known_gpus({})["H20"]
    costs, known = roofline(shape, gpu, layout, head), assumed(_ACCEPTANCE)
    rows: list[dict[str, Any]] = []
    for length in lengths:
        job = workload(np.full(2000, length), np.zeros(2000, np.int64), np.full(2000, _ANSWER))
        found = predict(shape, Pool("H20", gpu, 4), layout, job, _LIMITS)
        if not isinstance(found, Prediction):
            continue
        by_drafts = gains(costs, Running(found.sequences, job.context), known)
        mixed = gains(costs, Running.of(job, found.sequences), known)
        rows.append(
            {
                "prompt": str(length),
                "batch": found.sequences,
                **{str(drafts): by_drafts[drafts] for drafts in (1, 2, 3, 4, 5, 8)},
                "best": int(np.argmax(by_drafts)),
                "best_with_prompts": max(mixed),
            }
        )
    return rows


def utilisation(service: float, response: float) -> float:
    """Share of time that a server is busy, from a mean request with and without its waiting.

    Poisson arrivals and constant service (M/D/1): the wait is W = rho S / (2 (1 - rho)), so with
    r = (T - S) / S the share is 2 r / (1 + 2 r).
    """
    waiting = (response - service) / service
    return 2 * waiting / (1 + 2 * waiting)


def idle(data: Path | None) -> list[dict[str, Any]]:
    """The paper's 63.4 %, and what the formula makes of real arrivals at just that utilisation."""
    told = utilisation(0.756, 1.41)
    rows: list[dict[str, Any]] = [
        {"arrivals": "Poisson, as the paper's figures", "true": told, "by_formula": told}
    ]
    for name, times in (_arrivals(data) if data else {}).items():
        service = told * float(times[-1] - times[0]) / len(times)
        # With constant service a request ends a service after the later of its arrival and the end
        # of the one before it.
        number = np.arange(len(times))
        ends = np.maximum.accumulate(times - number * service) + (number + 1) * service
        found = utilisation(service, float((ends - times).mean()))
        rows.append({"arrivals": name, "true": told, "by_formula": found})
    return rows


def _arrivals(data: Path) -> dict[str, NDArray[np.float64]]:
    """Seconds of arrival, in order."""
    with sharing.opened(sharing.found(data, "AzureLLMInferenceTrace_conv.csv")) as stream:
        stamps = [row["TIMESTAMP"][:26] for row in csv.DictReader(stream)]
    with sharing.opened(sharing.found(data, "conversation_trace.jsonl")) as stream:
        seconds = [json.loads(line)["timestamp"] / 1000 for line in stream]
    azure = [datetime.fromisoformat(stamp).timestamp() for stamp in stamps]
    return {
        "azure conversations": np.sort(np.array(azure)),
        "mooncake": np.sort(np.array(seconds, dtype=np.float64)),
    }
