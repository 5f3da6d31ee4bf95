"""The GPUs that a plan can be made for: those known to the package and those of an environment."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from acdc_dagster.declared import Declared, read_yaml
from acdc_dagster.errors import DeclarationError

_KNOWN = Path(__file__).with_name("gpus.yaml")


class Gpu(Declared):
    """What one GPU can do: dense rates, without sparsity; links are one way."""

    bf16_tflops: float = Field(gt=0, description="Dense 16-bit TFLOP/s.")
    fp8_tflops: float | None = Field(default=None, gt=0, description="Dense; none if it has no 8.")
    memory_gb: float = Field(gt=0, description="10^9 bytes.")
    other_gb: float = Field(
        default=4.0, ge=0, description="Neither weights nor KV: activations, graphs, NCCL, CUDA."
    )
    bandwidth_tb_s: float = Field(gt=0, description="Of its memory, 10^12 bytes a second.")
    link_gb_s: float = Field(gt=0, description="To the GPUs of its node, 10^9 bytes a second.")
    node_gb_s: float = Field(gt=0, description="To another node, 10^9 bytes a second.")
    per_node: int = Field(default=8, ge=1)
    uncertainty: float = Field(
        default=0.4, ge=0, description="Of times predicted from these figures: 0.4 is about 40 %."
    )
    devices: list[str] = Field(
        default_factory=list, description="What engines call it; runs on it are learnt from."
    )
    price_hour: float | None = Field(default=None, ge=0, description="Of one GPU, any currency.")

    def flops(self, *, fp8: bool) -> float:
        """FLOP/s of dense matrix products; those in 8 bits run in 16 on a GPU that lacks them."""
        return 1e12 * ((self.fp8_tflops if fp8 else None) or self.bf16_tflops)

    @property
    def memory(self) -> float:
        """Bytes."""
        return 1e9 * self.memory_gb

    @property
    def bandwidth(self) -> float:
        """Bytes of its memory a second."""
        return 1e12 * self.bandwidth_tb_s


@dataclass(frozen=True)
class Pool:
    """So many GPUs of one kind, in nodes of `gpu.per_node`."""

    name: str
    gpu: Gpu
    count: int

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"


def known_gpus(own: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """The package's table with an environment's `gpus:` over it, by name."""
    table = cast("dict[str, Any]", read_yaml(_KNOWN))
    return {name: Gpu.model_validate(fields) for name, fields in table.items()} | dict(own)


def parse_pool(text: str, gpus: Mapping[str, Gpu]) -> Pool:
    """The pool that `NAME` or `NAME:COUNT` means, whatever the case of its letters.

    Raises:
        DeclarationError: The GPU is not known, or the count is no whole number from 1.
    """
    asked, _, count = text.partition(":")
    names = {name.lower(): name for name in gpus}
    name = names.get(asked.strip().lower())
    if name is None:
        near = difflib.get_close_matches(asked.lower(), names, n=1)
        guess = f"Did you mean {names[near[0]]}? " if near else ""
        raise DeclarationError(
            f"The GPU {asked!r} is not known.",
            f"{guess}Choose one of {', '.join(gpus)}; or describe it under gpus: of "
            "resources/<env>.yaml.",
        )
    if count and not (count.isascii() and count.isdigit() and int(count)):
        raise DeclarationError(
            f"{text!r} does not say how many GPUs: {count!r} is no whole number from 1.",
            f"Write it like {name}:8.",
        )
    return Pool(name, gpus[name], int(count or 1))
