"""From the JSON in `sorted_requests.sampling` to vLLM's own parameters of a request."""

import json
from typing import Any

from msgspec import Struct


class Form(Struct, frozen=True):
    """What is told of an answer beside its text.

    Attributes:
        choices: Answers to one request.
        logprobs: Alternatives to each token; None if none are asked for.
        chat: Whether it answers a chat, whose reasoning is told apart.
    """

    choices: int = 1
    logprobs: int | None = None
    chat: bool = True


def parameters_of(sampling: str) -> tuple[Any, Form]:
    """The `vllm.SamplingParams` of a request (or PoolingParams), and the form of its answer.

    They are those that `vllm serve` makes of the same body, but for greedy requests with several
    choices: vLLM refuses them, and here the one answer counts as all of them.

    Raises:
        ValueError: vLLM does not take them; its VLLMValidationError is one too.
        TypeError: Likewise.
    """
    from vllm.pooling_params import PoolingParams
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    given: dict[str, Any] = json.loads(sampling)
    if "task" in given:
        pooling = PoolingParams(task=given["task"], dimensions=given.get("dimensions"))
        return pooling, Form(chat=False)
    form = Form(given.get("n", 1), given.get("logprobs"), given.pop("chat", True))
    if given["temperature"] == 0:
        given.pop("n", None)
    if "structured_outputs" in given:
        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return SamplingParams(**given, output_kind=RequestOutputKind.FINAL_ONLY), form
