"""Daft's own way through vLLM, as a step of `benchmarks.measure`."""

import time
from typing import Any

from benchmarks.engines import ENGINE, MOST_TOKENS, extra_of
from benchmarks.measure import Work


def daft(texts: str, model: str, kv_blocks: int, max_tokens: int) -> Work:
    """Daft's `prompt` with its vLLM provider that groups prompts by prefix.

    Args:
        texts: Parquet file with columns `row` and `text`: rendered prompts.
        model: The model's folder.
        kv_blocks: KV blocks of the engine.
        max_tokens: Most tokens of an answer, at temperature 0.
    """
    import daft
    import daft.execution.vllm as engines
    from daft.functions.ai import prompt
    from vllm import SamplingParams

    up: list[float] = []

    class Timed(engines.LocalVLLMExecutor):
        """Notes when its engine is up."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            up.append(time.monotonic())

    engines.LocalVLLMExecutor = Timed  # the sink asks this module for its engine
    settings = {name: value for name, value in ENGINE.items() if name != "kv_cache_gib"}

    def run() -> dict[str, Any]:
        began = time.monotonic()
        answer = prompt(
            daft.col("text"),
            provider="vllm-prefix-caching",
            model=model,
            engine_args={**settings, "max_model_len": MOST_TOKENS, **extra_of(kv_blocks)},
            generate_args={
                "sampling_params": SamplingParams(temperature=0.0, max_tokens=max_tokens)
            },
        )
        frame = daft.read_parquet(texts).with_column("answer", answer)
        answers = frame.select("row", "answer").to_pydict()
        ended = time.monotonic()
        rows = zip(answers["row"], answers["answer"], strict=True)
        return {
            "seconds": ended - up[0],
            "with_start": ended - began,
            "texts": {f"r{row}": text for row, text in rows},
        }

    return run
