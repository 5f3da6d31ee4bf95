"""Layouts: how a model and its requests are shared out over the GPUs of a pool."""

from collections.abc import Iterator
from dataclasses import dataclass

from acdc_dagster.gpus import Pool
from acdc_dagster.planning.shapes.attention import Attention
from acdc_dagster.planning.shapes.model import ModelShape


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism.

    Attributes:
        tensor: GPUs that share each layer (TP).
        data: Replicas, each with its part of the requests (DP).
        expert: GPUs that share the routed experts whole (EP), over several replicas if it is more
            than `tensor`; 1: each expert is cut like the other layers.
        pipeline: Groups of layers in a row (PP).
    """

    tensor: int = 1
    data: int = 1
    expert: int = 1
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tensor * self.pipeline * self.data

    @property
    def lockstep(self) -> int:
        """Replicas that wait for one another in each step, since they share experts."""
        return max(self.expert // self.tensor, 1)

    @property
    def expert_gpus(self) -> int:
        """GPUs over which the experts of one layer lie."""
        return self.expert if self.expert > 1 else self.tensor

    def __str__(self) -> str:
        stages = f"-P{self.pipeline}" if self.pipeline > 1 else ""
        experts = f"-E{self.expert}" if self.expert > 1 else ""
        return f"T{self.tensor}-D{self.data}{experts}{stages}"


@dataclass(frozen=True)
class Fixed:
    """Degrees that are given and not planned; None: any.

    Attributes:
        independent: Only replicas that do without one another and without pipeline stages, as
            workers with an engine each run them.
    """

    tensor: int | None = None
    data: int | None = None
    expert: int | None = None
    independent: bool = False

    def allows(self, layout: Layout) -> bool:
        """Whether the layout has these degrees."""
        return (
            self.tensor in (None, layout.tensor)
            and self.data in (None, layout.data)
            and self.expert in (None, layout.expert)
            and not (self.independent and (layout.lockstep > 1 or layout.pipeline > 1))
        )


def layouts(
    shape: ModelShape, pool: Pool, stages: int = 1, fixed: Fixed | None = None
) -> Iterator[Layout]:
    """All layouts of a pool that the model's heads and experts allow, whether they fit or not.

    Tensor parallelism stays within a node; replicas are powers of two, as many as there is room
    for, and as many as are fixed. With pipeline stages a replica takes whole nodes and its experts
    are cut.

    Args:
        shape: The model.
        pool: The GPUs.
        stages: Pipeline stages of each replica; a stage is then a whole node.
        fixed: Degrees that are given.
    """
    fixed = fixed or Fixed()
    most = min(pool.gpu.per_node, pool.count)
    for tensor in range(1, most + 1):
        if most % tensor or not heads_divide(shape.attention, tensor):
            continue
        if stages > 1 and tensor < pool.gpu.per_node:
            continue
        for data in _counts(pool.count // (tensor * stages), fixed.data):
            yield from filter(fixed.allows, _of_degrees(shape, tensor, data, stages))


def _of_degrees(shape: ModelShape, tensor: int, data: int, stages: int) -> Iterator[Layout]:
    yield Layout(tensor, data, 1, stages)
    if shape.mlp.experts and stages == 1:
        yield from _with_experts(shape.mlp.experts, tensor, data)


def heads_divide(attention: Attention, tensor: int) -> bool:
    """Whether vLLM can share the heads over `tensor` GPUs: KV heads are split, or repeated evenly.

    Source: vLLM, ModelConfig.get_num_kv_heads and QKVParallelLinear.
    """
    kv_heads = attention.kv_heads
    return attention.heads % tensor == 0 and (kv_heads % tensor == 0 or tensor % kv_heads == 0)


def _with_experts(experts: int, tensor: int, data: int) -> Iterator[Layout]:
    for replicas in range(1, data + 1):
        degree = tensor * replicas
        if degree > 1 and data % replicas == 0 and experts % degree == 0:
            yield Layout(tensor, data, degree)


def _counts(most: int, fixed: int | None) -> list[int]:
    """Powers of two up to `most`, and `most`; or the one that is fixed, if there is room for it."""
    if fixed is not None:
        return [fixed] if fixed <= most else []
    powers = [2**exponent for exponent in range(most.bit_length()) if most]
    return sorted({*powers, most} - {0})
