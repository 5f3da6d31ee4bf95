"""How much a job loses by the planner's choice where NVIDIA AIConfigurator's rates are the truth.

AIConfigurator has tables of kernels measured with vLLM and a model of its scheduler, and shares
nothing with the planner but the data sheets. It runs in a Python of its own.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acdc_dagster.gpus import Pool, known_gpus
from acdc_dagster.planning.choice import choose
from acdc_dagster.planning.cost.layout import Layout, layouts
from acdc_dagster.planning.cost.makespan import Prediction, predict
from acdc_dagster.planning.cost.workload import workload
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import ModelShape, model_shape
from benchmarks.models import CONFIGS

GPUS = {"H100": "h100_sxm", "H200": "h200_sxm", "B200": "b200_sxm", "L40S": "l40s"}
# Tokens of prompt and answer: classify, extract, translate, summarise, reason, long documents.
LENGTHS = [(200, 10), (1000, 100), (1000, 1000), (8000, 200), (300, 3000), (30_000, 500)]
BATCHES = [16, 32, 64, 128, 256, 512, 1024]
# Its GPUs reach one another over PCIe, which differs from host to host.
_BY_PCIE = "L40S"
_UTILISATION = 0.9  # of the memory, vLLM's default
_CHUNK = 8192
_ROWS = 50_000  # so many that starting is nothing
_KNOWN = known_gpus({})


@dataclass(frozen=True)
class Point:
    """One job of the grid: a model on eight GPUs, all prompts and all answers of one length."""

    model: str
    gpu: str
    prompt: int
    answer: int


def grid(quick: bool) -> list[Point]:
    """All jobs; with `quick` those of one model on one GPU."""
    models = list(CONFIGS)[:1] if quick else list(CONFIGS)
    gpus = list(GPUS)[:1] if quick else list(GPUS)
    return [Point(model, gpu, *each) for gpu in gpus for model in models for each in LENGTHS]


def regrets(python: Path, points: list[Point]) -> list[dict[str, Any]]:
    """For each GPU and model: how much longer the chosen layouts take than the best ones.

    A layout's true rate is that of the largest batch that its memory allows, between those asked
    for, or of a smaller one if that is faster. A job counts if the tables hold at least two of its
    layouts, the chosen one among them.
    """
    asked = [(point, *each) for point in points for each in _queries(point)]
    rates = _answers(python, [query for _, _, query in asked])
    tables: dict[Point, dict[str, list[tuple[float, ...]]]] = {point: {} for point in points}
    for (point, layout, query), found in zip(asked, rates, strict=True):
        if found.get("rate"):
            row = (query["batch_size"], found["rate"], found["memory"])
            tables[point].setdefault(str(layout), []).append(row)
    true: dict[Point, dict[str, float]] = {}
    for point, by_layout in tables.items():
        usable = _KNOWN[point.gpu].memory_gb * _UTILISATION
        each = {layout: _rate(np.array(rows), usable) for layout, rows in by_layout.items()}
        true[point] = {layout: rate for layout, rate in each.items() if rate}
    found_regrets = [
        (point, *each) for point in points if (each := _regret(point, true[point])) is not None
    ]
    rows: list[dict[str, Any]] = []
    for gpu, model in dict.fromkeys((point.gpu, point.model) for point in points):
        here = [each for each in found_regrets if (each[0].gpu, each[0].model) == (gpu, model)]
        if here:
            rows.append(_summary(gpu, model, here))
    near = [each for each in found_regrets if each[0].gpu != _BY_PCIE]
    return [
        *rows,
        *(
            _summary(name, "", each)
            for name, each in (("with NVLink", near), ("all", found_regrets))
            if each
        ),
    ]


def _rate(rows: np.ndarray, usable: float) -> float:
    """Requests/s at the best batch that fits; 0 if none does. Memory grows evenly with the batch.

    Args:
        rows: float64[B, 3], batch sizes, requests/s and GiB.
        usable: GiB.
    """
    sizes, rates, memory = rows.T
    if memory[0] > usable or len(rows) < 2:
        return 0.0
    a_request = (memory[1] - memory[0]) / (sizes[1] - sizes[0])
    most = sizes[0] + (usable - memory[0]) / a_request
    at_most = float(np.interp(np.log(most), np.log(sizes), rates))
    return max(at_most, *rates[sizes <= most])


def _summary(gpu: str, model: str, found: list[tuple[Point, str, str, float]]) -> dict[str, Any]:
    lost = np.array([regret for *_, regret in found])
    point, chosen, best, _ = found[int(lost.argmax())]
    worst = f"{point.prompt}+{point.answer}: {chosen} for {best}" if lost.max() else ""
    return {
        "gpu": gpu,
        "model": model.split("/")[-1],
        "jobs": len(found),
        "within_5_percent": float((lost <= 0.05).mean()),
        "median_regret": float(np.median(lost)),
        "largest_regret": float(lost.max()),
        "worst": worst if model else "",
    }


def _shape(point: Point) -> ModelShape:
    return model_shape(Config.of(CONFIGS[point.model], point.model))


def _pool(point: Point) -> Pool:
    return Pool(point.gpu, _KNOWN[point.gpu], 8)


def _layouts(point: Point) -> list[Layout]:
    """Those that use all GPUs."""
    pool = _pool(point)
    return [each for each in layouts(_shape(point), pool) if each.gpus == pool.count]


def _queries(point: Point) -> Iterator[tuple[Layout, dict[str, Any]]]:
    routed = bool(_shape(point).mlp.experts)
    for layout in _layouts(point):
        # Replicas that wait for one another are its attention_dp; the others are engines apart.
        experts = {
            "moe_tp_size": 1 if layout.expert > 1 else layout.tensor,
            "moe_ep_size": layout.expert,
        }
        for batch in BATCHES:
            yield (
                layout,
                {
                    "model_path": point.model,
                    "system_name": GPUS[point.gpu],
                    "isl": point.prompt,
                    "osl": point.answer,
                    "batch_size": batch,
                    "ctx_tokens": _CHUNK,
                    "tp_size": layout.tensor,
                    "attention_dp_size": layout.lockstep,
                    "replicas": layout.data // layout.lockstep,
                    **(experts if routed else {}),
                },
            )


def _answers(python: Path, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name("aic_rates.py"))],
        input="".join(json.dumps(query) + "\n" for query in queries),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _regret(point: Point, true: dict[str, float]) -> tuple[str, str, float] | None:
    """The chosen layout, the best one, and by how much the chosen one takes longer."""
    job = workload(
        np.full(_ROWS, point.prompt), np.zeros(_ROWS, np.int64), np.full(_ROWS, point.answer)
    )
    shape, pool = _shape(point), _pool(point)
    found = [predict(shape, pool, layout, job) for layout in _layouts(point)]
    fit = [each for each in found if isinstance(each, Prediction)]
    if len(true) < 2 or not fit:
        return None
    chosen, best = str(choose(fit).best.layout), max(true, key=lambda layout: true[layout])
    return (chosen, best, true[best] / true[chosen] - 1) if chosen in true else None
