"""What the planner says of the paper's shapes, of measured kernels, and how long it takes.

    python -m benchmarks.planning [--quick] [--json] [--kernels FOLDER] [--traces FOLDER]
        [--aiconfigurator PYTHON] [--only TABLE ...]

Rates of layouts are simulated: they are the planner's own. Errors of operators are against kernels
that others measured; samples and drift are tried on real answers, and regret is against the rates
of NVIDIA AIConfigurator. Those tables, traces and that program are no part of this repository;
what needs one that is not given is left out. What each table means is in docs/planning.md.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from acdc_dagster.gpus import Pool, known_gpus
from acdc_dagster.planning.choice import candidates, choose
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.makespan import Prediction, predict
from acdc_dagster.planning.cost.workload import Workload, workload
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import ModelShape, model_shape
from benchmarks.drift import detection, false_alarms
from benchmarks.kernels import operator_errors
from benchmarks.models import CONFIGS
from benchmarks.papers import idle, speculation
from benchmarks.regret import grid, regrets
from benchmarks.sampling import by_strata, errors

# The layouts of ACDC's figure 11, and what its replicas could be without shared experts.
PAPER = [Layout(1, 8, 8), Layout(2, 4, 8), Layout(4, 2, 8), Layout(8, 1, 8)]
INDEPENDENT = [Layout(1, 8), Layout(2, 4), Layout(4, 2)]
LENGTHS = [100, 1_000, 10_000, 100_000]


def _job(prompt: int, answer: int) -> Workload:
    rows = 2_000
    return workload(np.full(rows, prompt), np.zeros(rows, np.int64), np.full(rows, answer))


def paper(shape: ModelShape, pool: Pool, what: str) -> list[dict[str, Any]]:
    """Rates of the layouts by length: `prefill` of prompts, or `decode` of answers."""
    rows: list[dict[str, Any]] = []
    for length in LENGTHS:
        job = _job(length, 1) if what == "prefill" else _job(100, length)
        row: dict[str, Any] = {"length": length}
        for layout in [*PAPER, *INDEPENDENT]:
            found = predict(shape, pool, layout, job)
            rate = getattr(found, f"{what}_rate") if isinstance(found, Prediction) else None
            row[str(layout)] = rate
        rates = {str(layout): row[str(layout)] or 0.0 for layout in PAPER}
        row["best of the paper's"] = max(rates, key=lambda name: rates[name])
        rows.append(row)
    return rows


def planning_time(shape: ModelShape, requests: int) -> dict[str, float]:
    """Seconds to plan so many requests over layouts of four pools; the best of three."""
    dice = np.random.default_rng(0)
    lengths, answers = dice.integers(100, 3_000, requests), dice.integers(1, 500, requests)
    lcp = np.minimum(dice.integers(0, 1_000, requests), lengths)
    gpus = known_gpus({})
    pools = [Pool(name, gpus[name], 32) for name in ("H20", "H100", "H200", "B200")]
    taken: list[float] = []
    found: list[Prediction] = []
    for _ in range(3):
        begun = time.perf_counter()
        found = candidates(shape, pools, workload(lengths, lcp, answers))
        choose(found)
        taken.append(time.perf_counter() - begun)
    return {"requests": requests, "candidates": len(found), "seconds": min(taken)}


def _table(title: str, rows: list[dict[str, Any]]) -> None:
    def cell(value: object) -> str:
        if isinstance(value, float):
            return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        return "does not fit" if value is None else str(value)

    print(f"\n{title}\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(map(cell, row.values()))} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rows: does it work at all?")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--kernels",
        type=Path,
        help="folder with perf_aiconfigurator_vllm and perf_vidur_profiles",
    )
    parser.add_argument(
        "--traces", type=Path, help="folder with the data sets and traces of docs/planning.md"
    )
    parser.add_argument(
        "--aiconfigurator", type=Path, help="a Python in whose environment it is installed"
    )
    parser.add_argument("--only", nargs="+", default=[], help="tables to make; all by default")
    options = parser.parse_args()
    found = {
        name: make()
        for name, make in _tables(options).items()
        if not options.only or name in options.only
    }
    if options.json:
        print(json.dumps(found))
        return
    for name, rows in found.items():
        _table(name, rows)


def _tables(options: argparse.Namespace) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    shape = model_shape(Config.of(CONFIGS["Qwen/Qwen3-30B-A3B"], "Qwen3-30B-A3B"))
    pool = Pool("H20", known_gpus({})["H20"], 8)
    quick, traces = options.quick, options.traces
    tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "paper_decode": lambda: paper(shape, pool, "decode"),
        "paper_prefill": lambda: paper(shape, pool, "prefill"),
        "speculation": lambda: speculation([100, 1_000, 4_000, 16_000, 32_000]),
        "idle": lambda: idle(traces),
        "planning_time": lambda: [planning_time(shape, 10_000 if quick else 1_000_000)],
    }
    if traces:
        tables |= {
            "sampling": lambda: errors(traces, 20 if quick else 500),
            "sampling_by_strata": lambda: by_strata(traces, 20 if quick else 300),
            "false_alarms": lambda: false_alarms(traces, 2 if quick else 50),
            "detection": lambda: [
                *detection(traces, 10_000, 1.5),
                *([] if quick else detection(traces, 100_000, 1.5)),
            ],
        }
    if options.kernels:
        tables["operators"] = lambda: operator_errors(options.kernels, 300 if quick else 5_000)
    if options.aiconfigurator:
        tables["regret"] = lambda: regrets(options.aiconfigurator, grid(quick))
    return tables


if __name__ == "__main__":
    main()
