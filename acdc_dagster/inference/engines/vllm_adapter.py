"""The LoRA adapter that all requests of an engine are asked with, in vLLM's words."""

import json
from pathlib import Path
from typing import Any

# The ranks that vLLM's kernels are built for; an adapter runs as one of the next higher.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def adapter_arguments(path: str | None) -> dict[str, Any]:
    """The engine arguments for an adapter; none without one.

    Args:
        path: The adapter's folder.

    Raises:
        ValueError: Its rank is higher than any that vLLM runs.
    """
    if path is None:
        return {}
    config: dict[str, Any] = json.loads((Path(path) / "adapter_config.json").read_text())
    rank = int(config["r"])
    fitting = [other for other in _RANKS if other >= rank]
    if not fitting:
        raise ValueError(f"the adapter in {path} has rank {rank}, and {_RANKS[-1]} is the highest")
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": fitting[0]}


def adapter_of(path: str | None) -> Any:
    """The `vllm.lora.request.LoRARequest` of an adapter; None without one."""
    if path is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest(Path(path).name, 1, path)
