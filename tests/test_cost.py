"""Memory, the time of a step and the numbers of a job, against values recorded elsewhere."""

import numpy as np
import pytest
from model_configs import CONFIGS

from acdc_dagster.gpus import Gpu, Pool, known_gpus
from acdc_dagster.planning.cost.layout import Layout, layouts
from acdc_dagster.planning.cost.memory import kv_bytes, kv_room, weight_bytes
from acdc_dagster.planning.cost.step import Batch, Efficiency, step_time
from acdc_dagster.planning.cost.workload import normal_maximum, workload
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import ModelShape, model_shape

GPUS = known_gpus({})
SHAPES = {name: model_shape(Config.of(fields, name)) for name, fields in CONFIGS.items()}
PAPER = [Layout(1, 8, 8), Layout(2, 4, 8), Layout(4, 2, 8), Layout(8, 1, 8)]


def decode_rate(layout: Layout, answer: int) -> float:
    """Tokens/s of Qwen3-30B-A3B on eight H20, prompts of 100 tokens, 2,048 requests at most."""
    shape, gpu, context = SHAPES["Qwen3-30B-A3B"], GPUS["H20"], 100 + answer / 2
    room = kv_room(shape, gpu, layout) // kv_bytes(shape, layout, context)
    batch = min(2048 / layout.data, room)
    recorded_with = Efficiency(0.70, 0.80, 0.80, 8e-6, 3e-3)
    seconds = step_time(shape, gpu, layout, Batch(batch, batch, context), recorded_with).total
    return batch * layout.data / seconds


def test_kv_tokens_of_qwen3_on_eight_h20() -> None:
    """More tensor parallelism frees memory, until the four KV heads are repeated at eight."""
    shape = SHAPES["Qwen3-30B-A3B"]
    tokens = [
        layout.data * kv_room(shape, GPUS["H20"], layout) / kv_bytes(shape, layout, 1) / 1e6
        for layout in PAPER
    ]
    assert tokens == pytest.approx([5.87, 5.99, 6.05, 3.04], abs=0.01)
    assert weight_bytes(shape, PAPER[0]) == pytest.approx(10.3e9, rel=0.01)


@pytest.mark.parametrize(
    ("answer", "recorded"),
    [
        (100, [98_076, 94_879, 92_151, 87_136]),
        (1_000, [94_134, 91_185, 88_662, 76_621]),
        (10_000, [34_521, 34_454, 34_333, 19_155]),
        (100_000, [3_888, 3_919, 3_971, 2_048]),
    ],
)
def test_decode_rates_of_the_papers_layouts(answer: int, recorded: list[int]) -> None:
    """As the recorded roofline says of them beside one another, and in the same order.

    That one leaves out the copies of tokens to their experts, so its rates are higher.
    """
    rates = [decode_rate(layout, answer) for layout in PAPER]
    beside_the_first = [rate / rates[0] for rate in rates]
    assert beside_the_first == pytest.approx([rate / recorded[0] for rate in recorded], rel=0.1)
    assert all(0.6 < rate / there < 1.05 for rate, there in zip(rates, recorded, strict=True))
    assert (np.argsort(rates) == np.argsort(recorded)).all()
    if answer >= 10_000:  # the paper: T8 loses more than a third to T4
        assert rates[3] < 0.67 * rates[2]


@pytest.mark.parametrize(("tokens", "recorded"), [(100, 1.0), (4_000, 1.15), (100_000, 1.70)])
def test_lock_step_replicas_wait_for_the_longest_context(tokens: int, recorded: float) -> None:
    """Eight replicas prefill side by side, each somewhere in a prompt of so many tokens."""
    zeros, ones = np.zeros(2_000, np.int64), np.ones(2_000, np.int64)
    job = workload(np.full(2_000, tokens), zeros, ones, chunk=256)
    weight = SHAPES["Qwen3-30B-A3B"].attention_weight * float(job.chunk_contexts.mean())
    slowest = (1 + weight * job.chunk_imbalance(8)) / (1 + weight)
    assert slowest == pytest.approx(recorded, rel=0.02)
    assert job.chunk_imbalance(1) == 1


def test_mla_is_not_shared_by_tensor_parallelism() -> None:
    """Each GPU keeps the latent; only more replicas give more room."""
    shape = SHAPES["DeepSeek-V3"]
    assert kv_bytes(shape, Layout(8), 1) == kv_bytes(shape, Layout(1), 1) == 70_272
    grouped = SHAPES["Llama-3.1-8B"]
    assert kv_bytes(grouped, Layout(8), 1) == kv_bytes(grouped, Layout(1), 1) / 8
    assert kv_bytes(grouped, Layout(16), 1) == kv_bytes(grouped, Layout(8), 1)


def test_a_window_bounds_what_is_kept() -> None:
    """Half of gpt-oss' layers keep 128 tokens."""
    shape = SHAPES["gpt-oss-20b"]
    short, long = (kv_bytes(shape, Layout(), context) for context in (128, 128_000))
    assert short == 128 * shape.kv_bytes_per_token
    assert long == pytest.approx(128_000 * shape.kv_bytes_per_token / 2, rel=0.01)


def test_the_numbers_of_a_job_are_those_of_its_steps() -> None:
    """Means over time equal those of a job played token by token."""
    dice = np.random.default_rng(0)
    lengths, answers = dice.integers(20, 200, 50), dice.integers(1, 300, 50)
    lcp = np.append(0, np.minimum(dice.integers(0, 150, 49), lengths[1:]))
    job = workload(lengths, lcp, answers, block_size=16)
    shared = np.minimum(lcp, lengths - 1) // 16 * 16
    contexts = np.concatenate(
        [length + np.arange(answer) + 0.5 for length, answer in zip(lengths, answers, strict=True)]
    )
    assert job.context == pytest.approx(contexts.mean())
    assert job.context_spread == pytest.approx(contexts.std(), rel=1e-3)
    positions = np.concatenate(
        [np.arange(a, b) + 0.5 for a, b in zip(shared, lengths, strict=True)]
    )
    assert job.uncached_tokens == len(positions)
    assert job.prefill_pairs == pytest.approx(positions.sum())
    assert job.hit_rate == pytest.approx(shared.sum() / lengths.sum())
    whole = workload(lengths, lcp, answers, chunk=10**9)
    assert whole.chunk_contexts == pytest.approx(positions.mean())


def test_the_largest_of_normal_values() -> None:
    """Against the tabulated expectation of the largest of eight (1.4236) and of two (0.5642)."""
    assert normal_maximum(8) == pytest.approx(1.4236, rel=0.01)
    assert normal_maximum(2) == pytest.approx(0.5642, rel=0.05)
    assert normal_maximum(1) == 0


def test_a_job_without_requests_has_no_work() -> None:
    """Zeros, and no division by them."""
    none = np.zeros(0, np.int64)
    job = workload(none, none, none)
    assert (job.uncached_tokens, job.hit_rate, job.chunk_imbalance(8)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("Qwen2.5-7B", {1, 2, 4}),  # 28 heads
        ("SmolLM2-135M", {1}),  # 9 heads
        ("Qwen3-30B-A3B", {1, 2, 4, 8}),  # beyond its 4 KV heads these are repeated
        ("DeepSeek-V3", {1, 2, 4, 8}),
    ],
)
def test_heads_are_shared_evenly(name: str, tensor: set[int]) -> None:
    """Layouts that vLLM would refuse are not offered."""
    offered = list(layouts(SHAPES[name], Pool("H100", GPUS["H100"], 16)))
    assert {layout.tensor for layout in offered} == tensor
    assert all(layout.gpus <= 16 for layout in offered)
    assert len(offered) == len(set(offered))
    for layout in offered:
        assert SHAPES[name].mlp.experts % layout.expert == 0 or layout.expert == 1
        assert layout.expert == layout.tensor * layout.lockstep or layout.expert == 1


def test_stages_take_whole_nodes() -> None:
    """Two stages of eight GPUs each on two nodes."""
    pool = Pool("H100", GPUS["H100"], 16)
    assert [str(each) for each in layouts(SHAPES["DeepSeek-V3"], pool, stages=2)] == ["T8-D1-P2"]


def test_a_step_takes_the_longer_of_work_and_reading() -> None:
    """By hand for a dense model: small batches read the weights, large ones compute."""
    shape: ModelShape = SHAPES["Llama-3.1-8B"]
    gpu: Gpu = GPUS["H100"]
    ideal = Efficiency(1, 1, 1, 0, 0, 1)
    small = step_time(shape, gpu, Layout(), Batch(1, 1, 0), ideal)
    read = 2 * (shape.token_params + shape.table_params) / 3.35e12
    assert small.total == pytest.approx(read)
    prompt = step_time(shape, gpu, Layout(), Batch(8192, 0, 0, 8192 * 4096), ideal)
    pairs = 4 * 32 * 32 * 128 * 8192 * 4096
    flops = 2 * 8192 * shape.token_params + pairs
    assert prompt.total == pytest.approx(flops / 989e12)
    halves = step_time(shape, gpu, Layout(2), Batch(8192, 0, 0, 8192 * 4096), ideal)
    sent = 2 * 32 * (2 * 1 / 2 * 8192 * 4096 * 2 / 450e9)
    assert halves.links == pytest.approx(sent)
    assert halves.total == pytest.approx(prompt.total / 2 + sent)
    eight_bits = model_shape(
        Config.of(
            {**CONFIGS["Llama-3.1-8B"], "quantization_config": {"quant_method": "fp8"}}, "fp8"
        )
    )
    faster = step_time(eight_bits, gpu, Layout(), Batch(8192, 0, 0), ideal)
    assert faster.weights == pytest.approx(prompt.weights / 2)


def test_experts_that_no_layer_has_take_no_time() -> None:
    """A configuration may name experts and list all layers as dense."""
    layers = list(range(48))
    shape = model_shape(
        Config.of(
            {**CONFIGS["Qwen3-30B-A3B"], "mlp_only_layers": layers, "intermediate_size": 6144},
            "dense",
        )
    )
    assert shape.mlp.expert_params == 0
    assert step_time(shape, GPUS["H100"], Layout(), Batch(64, 64, 100)).experts == 0
