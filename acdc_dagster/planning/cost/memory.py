"""Memory: what a layout keeps on each GPU, and how many requests it can run at once."""

from acdc_dagster.gpus import Gpu
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.shapes.model import ModelShape

# Share of a GPU's memory that vLLM takes, its default gpu_memory_utilization.
UTILISATION = 0.9


def weight_bytes(shape: ModelShape, layout: Layout) -> float:
    """Bytes of weights on the fullest GPU.

    Layers are shared by tensor and pipeline, routed experts by the GPUs that hold them; routers are
    on each. With stages a GPU holds one of the two vocabulary tables.
    """
    sizes, mlp, tensor = shape.precision, shape.mlp, layout.tensor
    tables = 1 if shape.tied or layout.pipeline > 1 else 2
    plain = (shape.table_params * tables + shape.vision_params) / tensor
    linear = (shape.attention.params + mlp.dense_params) / tensor / layout.pipeline
    experts = mlp.expert_params / layout.expert_gpus / layout.pipeline
    routers = mlp.router_params / layout.pipeline
    return sizes.plain * (plain + routers) + sizes.linear * linear + sizes.expert * experts


def kv_bytes(shape: ModelShape, layout: Layout, context: float) -> float:
    """Bytes on each GPU for one request with so many tokens of context.

    KV heads are shared by tensor parallelism down to one a GPU, and repeated beyond; the latent of
    MLA is on each GPU. Layers with a sliding window keep the window.
    """
    attention = shape.attention
    share = max(attention.kv_heads // layout.tensor, 1) / attention.kv_heads
    windowed = attention.window_layers * min(context, attention.window)
    layer_tokens = (attention.full_layers * context + windowed) / layout.pipeline
    return layer_tokens * attention.kv_values * share * shape.precision.kv


def kv_room(shape: ModelShape, gpu: Gpu, layout: Layout) -> float:
    """Bytes left for KV on the fullest GPU; below 0 if the weights do not fit.

    capacity x utilisation - weights - other, as vLLM reckons (NVIDIA AIConfigurator, memory.py).
    """
    return gpu.memory * UTILISATION - 1e9 * gpu.other_gb - weight_bytes(shape, layout)
