"""Bytes of a weight and of a cached value, from the configuration's types and quantisation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from acdc_dagster.planning.shapes.config import Config

# float32 checkpoints are run in half precision by vLLM's dtype: auto.
_TYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}
_FLOAT8 = ("fp8", "fbgemm_fp8")
_LOW_BITS = ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round", "hqq")


@dataclass(frozen=True)
class Precision:
    """Bytes a number.

    Attributes:
        plain: Of a weight that is never quantised: embeddings, output layer, router.
        linear: Of a weight of attention and of dense layers, scales included.
        expert: Of a weight of a routed expert, scales included.
        kv: Of a cached value.
        fp8: Whether matrices are multiplied in 8 bits; weights of 4 bits are multiplied in 16.
    """

    plain: float
    linear: float
    expert: float
    kv: float
    fp8: bool


def precision(config: Config, dtype: str = "auto", kv_cache_dtype: str = "auto") -> Precision:
    """The precisions that vLLM runs the model in.

    Args:
        config: The model's configuration.
        dtype: The engine's: auto takes the checkpoint's, in 16 bits if that is float32.
        kv_cache_dtype: The engine's: auto is the same as `dtype`, fp8… is one byte.

    Raises:
        ModelError: The type or the quantisation is not known.
    """
    plain = _plain(config, dtype)
    kv = 1.0 if kv_cache_dtype.startswith("fp8") else plain
    scheme = config.group("quantization_config") or config.group("compression_config")
    if not scheme:
        return Precision(plain, plain, plain, kv, fp8=False)
    method = str(scheme.get("quant_method", "")).lower()
    if method == "mxfp4":  # gpt-oss: experts only; 4 bits and a scale of 8 bits for each 32
        return Precision(plain, plain, 4.25 / 8, kv, fp8=False)
    try:
        size = _quantised(config, method, scheme)
    except (AttributeError, TypeError, ValueError) as error:  # "bits": "four"
        raise config.refuse(f"the quantisation {method!r} is written wrongly: {error}") from error
    return Precision(plain, size, size, kv, fp8=size >= 1 and method not in _LOW_BITS)


def _plain(config: Config, dtype: str) -> float:
    if dtype == "auto":
        own = config.text("dtype", "torch_dtype").removeprefix("torch.") or "bfloat16"
        dtype = "float16" if own == "float32" else own
    if dtype not in _TYPE_BYTES:
        raise config.refuse(f"the type {dtype!r} is not known.")
    return float(_TYPE_BYTES[dtype])


def _quantised(config: Config, method: str, scheme: Mapping[str, Any]) -> float:
    if method in _FLOAT8:
        return 1.0
    if method in _LOW_BITS:
        group = int(scheme.get("group_size") or scheme.get("q_group_size") or 128)
        return _grouped(int(scheme.get("bits") or scheme.get("w_bit") or 4), group)
    if method == "bitsandbytes":
        return _grouped(4, 64) if scheme.get("load_in_4bit") else 1.0
    if method.startswith("modelopt"):
        algorithm = str(scheme.get("quant_algo") or "FP8").upper()
        return _grouped(4, 16, scale_bits=8) if "FP4" in algorithm else 1.0
    if method == "compressed-tensors":
        groups = cast("dict[str, dict[str, Any]]", scheme.get("config_groups") or {})
        weights = next((group.get("weights") for group in groups.values()), None)
        if isinstance(weights, dict) and "num_bits" in weights:
            own = cast("dict[str, Any]", weights)
            return _grouped(int(own["num_bits"]), int(own.get("group_size") or 0))
    raise config.refuse(f"the quantisation {method or dict(scheme)!r} is not known.")


def _grouped(bits: int, group: int, scale_bits: int = 16) -> float:
    """Bytes of a weight of `bits` that shares a scale with `group` others; 0: no groups."""
    return (bits + (scale_bits / group if group > 0 else 0)) / 8
