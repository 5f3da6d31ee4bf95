"""What the planner says of the paper's shapes, of measured kernels, and how long it takes.

    python -m benchmarks.planning [--quick] [--json] [--kernels FOLDER]

Rates of layouts are simulated: they are the planner's own. Errors of operators are against kernels
that others measured; without --kernels they are left out, since the tables are not part of this
repository. What each table means is in docs/planning.md.
"""

import argparse
import json
import time
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
from benchmarks.kernels import operator_errors

# The fields of the published configuration that make the shape.
QWEN3_30B_A3B = {
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
}
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
    options = parser.parse_args()
    shape = model_shape(Config.of(QWEN3_30B_A3B, "Qwen3-30B-A3B"))
    pool = Pool("H20", known_gpus({})["H20"], 8)
    found: dict[str, Any] = {
        "paper_decode": paper(shape, pool, "decode"),
        "paper_prefill": paper(shape, pool, "prefill"),
        "planning_time": [planning_time(shape, 10_000 if options.quick else 1_000_000)],
    }
    if options.kernels:
        found["operators"] = operator_errors(options.kernels, 300 if options.quick else 5_000)
    if options.json:
        print(json.dumps(found))
        return
    for name, rows in found.items():
        _table(name, rows)


if __name__ == "__main__":
    main()
