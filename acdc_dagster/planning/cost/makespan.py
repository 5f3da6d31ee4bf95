"""How long a layout takes for a job, and what that costs."""

from dataclasses import dataclass, replace

from acdc_dagster.gpus import Pool
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.memory import kv_bytes, kv_room, weight_bytes
from acdc_dagster.planning.cost.step import Batch, Efficiency, StepTime, step_time
from acdc_dagster.planning.cost.workload import Workload
from acdc_dagster.planning.shapes.model import ModelShape

# What a replica does before its first token: processes, compiling, graphs; and each node reads the
# weights once, from a disk or a near object store. Assumptions, until runs are measured.
START_SECONDS = 60.0
LOAD_BYTES_A_SECOND = 2e9

BOUNDS = {
    "weights": "dense weights, computed or read",
    "attention": "attention and reading the KV cache",
    "experts": "experts, computed or read",
    "links": "links between GPUs",
    "overhead": "what a step costs beside its kernels",
}


@dataclass(frozen=True, order=True)
class EngineLimits:
    """What a replica's scheduler is told.

    Attributes:
        sequences: vLLM's max_num_seqs.
        tokens: vLLM's max_num_batched_tokens.
    """

    sequences: int = 1024
    tokens: int = 8192


@dataclass(frozen=True)
class Prediction:
    """What a layout is expected to do with a job.

    Attributes:
        sequences: Requests that a replica runs at once.
        limits: What its scheduler is told.
        step_seconds: Of a step while prompts and answers are computed side by side.
        prefill_rate: Prompt tokens/s of all replicas, in steps that compute nothing else.
        decode_rate: Generated tokens/s of all replicas, in steps that compute nothing else.
        imbalance: Step of the slowest of the replicas that wait for one another, over the mean.
        bound: What most of a step goes into, a key of BOUNDS.
        start_seconds: Until the first token.
        seconds: From start to the last answer.
        cost: In the currency of the GPU's price; None if there is no price.
        error: Standard deviation of the logarithm of the time without starting: about the relative
            error.
        measured: Runs of this configuration that it was learnt from.
        source: Where the figures come from: history, roofline x history (of other configurations
            on this GPU), or roofline.
    """

    pool: Pool
    layout: Layout
    sequences: int
    limits: EngineLimits
    step_seconds: float
    prefill_rate: float
    decode_rate: float
    imbalance: float
    bound: str
    start_seconds: float
    seconds: float
    cost: float | None
    error: float
    measured: int = 0
    source: str = "roofline"

    @property
    def gpu_seconds(self) -> float:
        """Seconds times GPUs, starting included."""
        return self.seconds * self.layout.gpus


@dataclass(frozen=True)
class Unfit:
    """A layout that cannot run the job, and the bytes on a GPU that it lacks."""

    pool: Pool
    layout: Layout
    needed: float
    room: float


def predict(
    shape: ModelShape,
    pool: Pool,
    layout: Layout,
    job: Workload,
    limits: EngineLimits | None = None,
    efficiency: Efficiency | None = None,
) -> Prediction | Unfit:
    """How `layout` would run `job`, whose requests are cut evenly among the replicas.

    Prompts and answers are computed side by side: while B requests decode, each step makes room for
    as many as finish, so it holds B (U + D) / D tokens for U uncached prompt tokens and D decode
    steps a replica. B is bounded by memory, by the engine's limits and by the requests there are.
    Each cut costs the shared prefix at its border once more.

    Args:
        shape: The model.
        pool: The GPUs.
        layout: One of `layouts(shape, pool)`.
        job: The job in numbers.
        limits: Of the engines.
        efficiency: Of the GPUs.
    """
    limits = limits or EngineLimits()
    room = kv_room(shape, pool.gpu, layout)
    sequences = _sequences(shape, layout, job, room)
    if sequences < 1:
        most = kv_bytes(shape, layout, job.longest)
        return Unfit(pool, layout, weight_bytes(shape, layout) + most, room)
    requests = job.requests / layout.data
    prompt = (job.uncached_tokens + (layout.data - 1) * job.mean_lcp) / layout.data
    decode = job.decode_steps / layout.data
    running = min(float(sequences), limits.sequences, max(requests, 1.0))
    if decode:
        running = min(running, limits.tokens * decode / (prompt + decode))
    tokens = running * (prompt + decode) / decode if decode else min(float(limits.tokens), prompt)
    steps = (prompt + decode) / tokens if tokens else 0.0
    generating = decode / steps if steps else 0.0
    mean = Batch(tokens, generating, job.context, job.prefill_pairs / layout.data / max(steps, 1))
    step, average = (
        step_time(shape, pool.gpu, layout, batch, efficiency)
        for batch in (_slowest(mean, job, layout), mean)
    )
    alone = step_time(shape, pool.gpu, layout, Batch(1, 1, job.longest), efficiency).total
    start = START_SECONDS + shape.weight_bytes / layout.pipeline / LOAD_BYTES_A_SECOND
    seconds = start + max(steps * step.total, job.longest_answer * alone)
    prefill, decoding = _rates(shape, pool, layout, job, sequences, limits, efficiency)
    price = pool.gpu.price_hour
    return Prediction(
        pool=pool,
        layout=layout,
        sequences=min(sequences, limits.sequences),
        limits=limits,
        step_seconds=step.total,
        prefill_rate=prefill,
        decode_rate=decoding,
        imbalance=step.total / average.total,
        bound=_bound(step),
        start_seconds=start,
        seconds=seconds,
        cost=None if price is None else price * layout.gpus * seconds / 3600,
        error=pool.gpu.uncertainty,
    )


def _sequences(shape: ModelShape, layout: Layout, job: Workload, room: float) -> int:
    """Requests whose KV fits at once: neighbours share a beginning, which is kept once."""
    longest = kv_bytes(shape, layout, job.longest)
    if room < longest or room <= 0:
        return 0
    own = kv_bytes(shape, layout, max(job.own, 1.0))
    shared = kv_bytes(shape, layout, max(job.context - job.own, 0.0))
    return max(int((room - shared) // own), 1)


def _slowest(batch: Batch, job: Workload, layout: Layout) -> Batch:
    """The batch that the others of a lock-step group wait for."""
    ranks = layout.lockstep
    return replace(
        batch,
        pairs=batch.pairs * job.chunk_imbalance(ranks),
        context=batch.context * job.context_imbalance(ranks, batch.sequences),
    )


def _rates(
    shape: ModelShape,
    pool: Pool,
    layout: Layout,
    job: Workload,
    sequences: int,
    limits: EngineLimits,
    efficiency: Efficiency | None,
) -> tuple[float, float]:
    """Tokens/s of all replicas computing prompts only, and answers only."""
    pairs = job.prefill_pairs / max(job.uncached_tokens, 1) * limits.tokens
    running = float(min(sequences, limits.sequences, limits.tokens))
    prompts, answers = Batch(limits.tokens, 0, 0, pairs), Batch(running, running, job.context)
    prefill, decode = (
        layout.data
        * batch.tokens
        / step_time(shape, pool.gpu, layout, _slowest(batch, job, layout), efficiency).total
        for batch in (prompts, answers)
    )
    return prefill, decode


def _bound(step: StepTime) -> str:
    return max(BOUNDS, key=lambda part: getattr(step, part))
