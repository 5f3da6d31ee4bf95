"""From the JSON in `sorted_requests.sampling` to vLLM's own parameters of a request."""

import json
from typing import Any

from msgspec import Struct

from acdc_dagster.inference.engines.protocol import Request

# The name under which a scheduler plug-in finds the hints in a request's `extra_args`.
HINTS = "acdc"


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


def hints_of(request: Request) -> dict[str, Any]:
    """What a scheduler plug-in may know of a request, as `SamplingParams.extra_args`.

    `next_lcp` are the prompt tokens that the next request in prefix order shares: beyond them its
    KV blocks are of no more use. `answer_tokens` is the expected length of its answer; nothing
    better than its most tokens is known so far. Both are plain integers, since a plug-in that fails
    takes the engine with it.
    """
    return {HINTS: {"next_lcp": request.next_lcp, "answer_tokens": request.max_tokens}}


def parameters_of(sampling: str, extra_args: dict[str, Any] | None = None) -> tuple[Any, Form]:
    """The `vllm.SamplingParams` of a request (or PoolingParams), and the form of its answer.

    They are those that `vllm serve` makes of the same body, but for greedy requests with several
    choices: vLLM refuses them, and here the one answer counts as all of them.

    Args:
        sampling: The JSON.
        extra_args: For a scheduler plug-in; requests that are pooled have none.

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
    kind = RequestOutputKind.FINAL_ONLY
    return SamplingParams(**given, extra_args=extra_args, output_kind=kind), form
