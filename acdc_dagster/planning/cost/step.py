"""The time of one step of an engine, from what it computes, reads and sends (a roofline)."""

from dataclasses import dataclass, replace

from acdc_dagster.gpus import Gpu
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.memory import kv_bytes
from acdc_dagster.planning.cost.workload import normal_maximum
from acdc_dagster.planning.shapes.model import ModelShape


@dataclass(frozen=True)
class Efficiency:
    """How much of a GPU's rates an engine gets.

    The shares are about the medians of the kernels that NVIDIA AIConfigurator measured with vLLM
    0.24 on H100 and H200; see docs/planning.md.

    Attributes:
        compute: Of the dense rate, in matrix products.
        bandwidth: Of the memory's, reading weights.
        attention: Of the memory's, reading KV.
        latency: Seconds that a collective takes however little it sends.
        overhead: Seconds a step beside its kernels: scheduling, sampling, launching.
        prefill: Of the dense rate, in the attention of prompts.
    """

    compute: float = 0.70
    bandwidth: float = 0.65
    attention: float = 0.75
    latency: float = 5e-6
    overhead: float = 3e-3
    prefill: float = 0.55


@dataclass(frozen=True)
class Batch:
    """What one replica computes in a step.

    Attributes:
        tokens: Prompt and generated tokens.
        sequences: Requests that get one more token, at `context` tokens of context each.
        pairs: Pairs of tokens that attend to one another in the prompts.
        drafted: Mean tokens that each sequence verifies beside the one it gets anyway; they are
            among `tokens`.
    """

    tokens: float
    sequences: float
    context: float
    pairs: float = 0.0
    drafted: float = 0.0

    @property
    def sampled(self) -> float:
        """Tokens of the answers: those that get an output."""
        return self.sequences * (1 + self.drafted)


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by what they go into."""

    weights: float
    attention: float
    experts: float
    links: float
    overhead: float

    @property
    def total(self) -> float:
        """Seconds."""
        return self.weights + self.attention + self.experts + self.links + self.overhead


def step_time(
    shape: ModelShape, gpu: Gpu, layout: Layout, batch: Batch, efficiency: Efficiency | None = None
) -> StepTime:
    """The time of a step in which each replica of a lock-step group computes `batch`.

    A part takes the longer of its FLOP and its bytes. With pipeline stages the batch is cut into as
    many, which follow one another through the stages, so a step is as many turns of a stage.
    """
    rate = efficiency or Efficiency()
    stages = layout.pipeline
    part = replace(
        batch,
        tokens=batch.tokens / stages,
        sequences=batch.sequences / stages,
        pairs=batch.pairs / stages,
    )
    flops = gpu.flops(fp8=shape.precision.fp8) * rate.compute
    return StepTime(
        weights=stages * _linear(shape, gpu, layout, part, flops, rate),
        attention=stages * _attention(shape, gpu, layout, part, rate),
        experts=stages * _experts(shape, gpu, layout, part, flops, rate),
        links=stages * _links(shape, gpu, layout, part, rate),
        overhead=rate.overhead,
    )


def _linear(
    shape: ModelShape, gpu: Gpu, layout: Layout, part: Batch, flops: float, rate: Efficiency
) -> float:
    """Attention's projections, dense MLPs, routers; and the output layer for sampled tokens."""
    sizes, split = shape.precision, layout.tensor * layout.pipeline
    params = (shape.attention.params + shape.mlp.dense_params) / split
    routers = shape.mlp.router_params / layout.pipeline
    size = sizes.linear * params + sizes.plain * routers
    head = shape.table_params / split
    reading = gpu.bandwidth * rate.bandwidth
    body = max(2 * part.tokens * (params + routers) / flops, size / reading)
    sampled = 2 * part.sampled * head / (gpu.flops(fp8=False) * rate.compute)
    return body + max(sampled, sizes.plain * head / reading if part.sequences else 0.0)


def _attention(shape: ModelShape, gpu: Gpu, layout: Layout, part: Batch, rate: Efficiency) -> float:
    """Decode reads the KV of each sequence once, shared or not; prefill computes pairs."""
    attention, split = shape.attention, layout.tensor * layout.pipeline
    flops = gpu.flops(fp8=False) * rate.compute
    windowed = attention.window_layers * min(part.context, attention.window)
    layer_tokens = attention.full_layers * part.context + windowed
    decode = 2 * part.sampled * layer_tokens * attention.decode_values / split / flops
    read = part.sequences * kv_bytes(shape, layout, part.context)
    prompt_tokens = part.tokens - part.sampled
    in_windows = min(part.pairs, prompt_tokens * attention.window)
    pairs = attention.full_layers * part.pairs + attention.window_layers * in_windows
    prefill = 2 * pairs * attention.prefill_values / split
    prefill /= gpu.flops(fp8=False) * rate.prefill
    return max(decode, read / (gpu.bandwidth * rate.attention)) + prefill


def _experts(
    shape: ModelShape, gpu: Gpu, layout: Layout, part: Batch, flops: float, rate: Efficiency
) -> float:
    """Routed experts: those that any token of the group chose are read, the busiest GPU counts.

    Tokens are taken to choose experts evenly: of E experts, 1 - (1 - k / E)^tokens are chosen, and
    the busiest GPU has the largest of so many Poisson counts. Real routers are less even.
    """
    mlp = shape.mlp
    if not mlp.layers:
        return 0.0
    tokens = part.tokens * layout.lockstep
    held = mlp.expert_params / layout.expert_gpus / layout.pipeline
    per_token = held * mlp.experts_per_token / mlp.experts
    chosen = 1 - (1 - mlp.experts_per_token / mlp.experts) ** tokens
    uneven = 1.0
    if layout.expert > 1:
        mean = max(tokens * mlp.experts_per_token / layout.expert, 1.0)
        uneven += normal_maximum(layout.expert) / mean**0.5
    reading = gpu.bandwidth * rate.bandwidth
    # A token is copied to each of its experts and their answers are summed: vLLM's kernels touch
    # 4 hidden vectors an expert on each GPU, and the experts' own width 6 times on one.
    width = mlp.expert_params / (mlp.layers * mlp.experts * 3 * shape.hidden)
    touched = 4 * shape.hidden + 6 * width / layout.expert_gpus
    copies = tokens * mlp.experts_per_token * mlp.layers / layout.pipeline * touched * 2
    multiplied = 2 * tokens * per_token * uneven / flops
    read = shape.precision.expert * held * chosen / reading
    return max(multiplied, read) + copies / reading


def _links(shape: ModelShape, gpu: Gpu, layout: Layout, part: Batch, rate: Efficiency) -> float:
    """All-reduces of tensor parallelism, dispatch and combine of experts, hops between stages."""
    tensor, layers = layout.tensor, shape.layers / layout.pipeline
    size = part.tokens * shape.hidden * 2  # activations have 16 bits
    routed = shape.mlp.layers / layout.pipeline if layout.lockstep > 1 else 0.0
    seconds = 0.0
    if tensor > 1:  # after attention and after the MLP; a ring sends 2 (t - 1) / t of it
        each = rate.latency + 2 * (tensor - 1) / tensor * size / (1e9 * gpu.link_gb_s)
        seconds += (2 * layers - routed) * each
    if routed:
        ranks = layout.expert
        link = gpu.link_gb_s if ranks <= gpu.per_node else gpu.node_gb_s
        # A token's k experts lie on so many distinct GPUs.
        reached = ranks * (1 - (1 - 1 / ranks) ** shape.mlp.experts_per_token)
        sent = size / tensor * reached * (ranks - 1) / ranks
        seconds += routed * 2 * (rate.latency + sent / (1e9 * link))
    if layout.pipeline > 1:
        seconds += rate.latency + size / tensor / (1e9 * gpu.node_gb_s)
    return seconds
