"""The planner's step times against kernels that others measured, operator by operator.

Each operator is a model of one layer that has nothing else, so the planner's own `step_time` is
what is compared and not a copy of its formulas.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from acdc_dagster.gpus import Gpu, known_gpus
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.step import Batch, Efficiency, step_time
from acdc_dagster.planning.shapes.attention import Attention
from acdc_dagster.planning.shapes.mlp import Mlp
from acdc_dagster.planning.shapes.model import ModelShape
from acdc_dagster.planning.shapes.precision import Precision

Row = dict[str, Any]

_HALF = Precision(2.0, 2.0, 2.0, 2.0, fp8=False)
_NO_ATTENTION = Attention(0, 1, 1, False, 0, 0, 0, 1, 0, 0)
_NO_MLP = Mlp(0, 0, 0, 0, 0, 0)
_KERNELS = Efficiency(overhead=0.0)
# Shorter ones are mostly launching, which the planner counts by the step: Efficiency.overhead.
_SHORTEST_MS = 0.05
_GPUS = {"h100": "H100", "h200": "H200", "a100": "A100-80GB"}


def _one_layer(
    attention: Attention = _NO_ATTENTION, mlp: Mlp = _NO_MLP, hidden: int = 1
) -> ModelShape:
    return ModelShape(1, hidden, 0, True, attention, mlp, 0, _HALF)


def _heads(row: Row) -> Attention:
    heads, kv_heads, size = (
        row["num_heads"],
        row["num_key_value_heads"] or row["num_heads"],
        row["head_dim"],
    )
    values = 2 * heads * size
    return Attention(0, heads, kv_heads, False, 2 * kv_heads * size, values, values, 1, 0, 0)


def _gemm(row: Row, gpu: Gpu) -> float:
    shape = _one_layer(mlp=Mlp(row["n"] * row["k"], 0, 0, 0, 0, 0))
    return step_time(shape, gpu, Layout(), Batch(row["m"], 0, 0), _KERNELS).weights


def _decode(row: Row, gpu: Gpu) -> float:
    batch = Batch(row["batch_size"], row["batch_size"], row["step"] + 1)
    return step_time(_one_layer(_heads(row)), gpu, Layout(), batch, _KERNELS).attention


def _prefill(row: Row, gpu: Gpu) -> float:
    batch = Batch(row["batch_size"] * row["isl"], 0, 0, row["batch_size"] * row["isl"] ** 2 / 2)
    return step_time(_one_layer(_heads(row)), gpu, Layout(), batch, _KERNELS).attention


def _experts(row: Row, gpu: Gpu) -> float:
    experts, ranks = row["num_experts"], row["moe_ep_size"]
    params = 3 * row["hidden_size"] * row["inter_size"] * experts
    mlp = Mlp(0, 0, params, 1, experts, row["topk"])
    shape = _one_layer(mlp=mlp, hidden=row["hidden_size"])
    layout = Layout(1, ranks, ranks) if ranks > 1 else Layout(row["moe_tp_size"])
    return step_time(shape, gpu, layout, Batch(row["num_tokens"] / ranks, 0, 0), _KERNELS).experts


def _all_reduce(row: Row, gpu: Gpu) -> float:
    layout = Layout(row["num_gpus"])
    # A layer reduces twice.
    return (
        step_time(_one_layer(), gpu, layout, Batch(row["message_size"], 0, 0), _KERNELS).links / 2
    )


def _layer(row: Row, gpu: Gpu) -> float:
    """Projections and MLP of a layer, with the small kernels between them."""
    width, heads, kv_heads = row["n_embd"], row["n_head"], row["n_kv_head"]
    projections = 2 * width * width * (1 + kv_heads / heads)
    params = int(projections + 3 * width * row["n_expanded_embd"])
    shape = _one_layer(mlp=Mlp(params, 0, 0, 0, 0, 0))
    batch = Batch(row["num_tokens"], 0, 0)
    return step_time(
        shape, gpu, Layout(row["num_tensor_parallel_workers"]), batch, _KERNELS
    ).weights


_BF16 = pl.col("kv_cache_dtype") == "bfloat16"
_EVEN = pl.col("distribution") == "balanced"
# Operator → file, what is compared, the planner's time. Matrices under 1,024 a side are no layer's.
_OPERATORS: dict[str, tuple[str, pl.Expr, Callable[[Row, Gpu], float]]] = {
    "gemm": (
        "gemm",
        (pl.col("gemm_dtype") == "bfloat16") & (pl.min_horizontal("n", "k") >= 1024),
        _gemm,
    ),
    "decode attention": (
        "generation_attention",
        _BF16
        & (pl.col("window_size") == 0)
        & (pl.col("step") >= 127)
        & (pl.col("head_dim") == 128),
        _decode,
    ),
    "prefill attention": (
        "context_attention",
        _BF16 & (pl.col("window_size") == 0) & (pl.col("isl") >= 128) & (pl.col("head_dim") == 128),
        _prefill,
    ),
    "experts, even": ("moe", (pl.col("moe_dtype") == "bfloat16") & _EVEN, _experts),
    "experts, skewed": ("moe", (pl.col("moe_dtype") == "bfloat16") & ~_EVEN, _experts),
    "all-reduce": ("custom_allreduce", pl.col("backend") == "vllm_graph", _all_reduce),
}
_LAYER_PARTS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)


def operator_errors(folder: Path, rows: int) -> list[dict[str, Any]]:
    """Error of the predicted time of each operator on each GPU, where it takes 50 us or more.

    Args:
        folder: Holds `perf_aiconfigurator_vllm` and `perf_vidur_profiles`.
        rows: Most measurements looked at of each operator, drawn evenly.

    Returns:
        For each: median and 90th percentile of |predicted - measured| / measured, the median of
        predicted / measured, the measurements compared, and the share that is long enough.
    """
    found = [
        *_tables(folder / "perf_aiconfigurator_vllm"),
        *_layers(folder / "perf_vidur_profiles"),
    ]
    return [_error(*each, rows) for each in found]


def _tables(folder: Path) -> Iterator[tuple[str, str, pl.DataFrame, Callable[[Row, Gpu], float]]]:
    for name, (file, which, predicted) in _OPERATORS.items():
        for gpu in ("h100", "h200"):
            path = folder / f"{gpu}_sxm__{file}_perf.parquet"
            yield name, gpu, pl.read_parquet(path).filter(which), predicted


def _layers(folder: Path) -> Iterator[tuple[str, str, pl.DataFrame, Callable[[Row, Gpu], float]]]:
    for path in sorted(folder.glob("compute_*_mlp.csv.gz")):
        columns = [pl.col(f"time_stats.{part}.median").cast(pl.Float64) for part in _LAYER_PARTS]
        times = pl.read_csv(path, infer_schema_length=None).with_columns(
            latency=pl.sum_horizontal(columns)
        )
        gpu, name = path.name.split("_")[1], path.name.split("_")[-2].removesuffix("-hf")
        yield f"layer of {name}", gpu, times, _layer


def _error(
    operator: str, gpu: str, table: pl.DataFrame, predicted: Callable[[Row, Gpu], float], rows: int
) -> dict[str, Any]:
    long = table.filter(pl.col("latency") >= _SHORTEST_MS)
    sample = long.sample(min(rows, len(long)), seed=0)
    spec = known_gpus({})[_GPUS[gpu]]
    times = np.array([predicted(row, spec) for row in sample.iter_rows(named=True)])
    ratio = times / (sample["latency"].to_numpy() / 1e3)  # measured in milliseconds
    error = np.abs(ratio - 1)
    return {
        "operator": operator,
        "gpu": _GPUS[gpu],
        "compared": len(sample),
        "long_enough": len(long) / len(table),
        "median_error": float(np.median(error)),
        "p90_error": float(np.quantile(error, 0.9)),
        "median_ratio": float(np.median(ratio)),
    }
