"""From what vLLM puts out for a request to the answer that a worker commits."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from acdc_dagster.inference.engines.protocol import Answer
from acdc_dagster.inference.engines.vllm_reasoning import Reasoning
from acdc_dagster.inference.engines.vllm_sampling import Form

# JSON has no infinity; the OpenAI API writes this for a token that cannot be.
_LEAST = -9999.0


def answer_of(output: Any, form: Form, tokenizer: Any, reasoning: Reasoning | None) -> Answer:
    """The answer in a finished `vllm.RequestOutput` or `vllm.PoolingRequestOutput`.

    Args:
        output: What vLLM put out.
        form: What the request wants to be told.
        tokenizer: The engine's own, for tokens that vLLM gives no text of.
        reasoning: Tells the reasoning of a chat's answer apart.
    """
    if hasattr(output.outputs, "data"):
        return _vector(output)
    finished, times = datetime.now(UTC), output.metrics
    took = max(times.last_token_ts - times.scheduled_ts, 0.0) if times is not None else 0.0
    choices = sorted(output.outputs, key=lambda completion: completion.index)
    parts = [_told(completion, form, tokenizer) for completion in choices]
    if form.chat and reasoning is not None:
        for part, completion in zip(parts, choices, strict=True):
            part |= reasoning.split(output.prompt_token_ids, completion.text, completion.token_ids)
    told, *more = parts
    more += [told] * (form.choices - 1 - len(more))  # greedy: each choice would be the same
    return Answer(
        request_hash=output.request_id,
        text=told["text"],
        finish_reason=told["finish_reason"],
        prompt_tokens=len(output.prompt_token_ids or ()),
        cached_tokens=output.num_cached_tokens or 0,
        completion_tokens=sum(len(completion.token_ids) for completion in output.outputs),
        reasoning=told.get("reasoning"),
        reasoning_tokens=_sum(part.get("reasoning_tokens") for part in parts),
        choices=json.dumps(more, ensure_ascii=False) if more else None,
        logprobs=_json(told.get("logprobs")),
        started_at=finished - timedelta(seconds=took),
        finished_at=finished,
    )


def _vector(output: Any) -> Answer:
    now = datetime.now(UTC)  # vLLM tells no times of these
    return Answer(
        request_hash=output.request_id,
        finish_reason="stop",
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        completion_tokens=0,
        embedding=output.outputs.data.tolist(),
        started_at=now,
        finished_at=now,
    )


def _told(completion: Any, form: Form, tokenizer: Any) -> dict[str, Any]:
    """One choice, by the names of the fields of `Answer`."""
    told: dict[str, Any] = {
        "text": completion.text,
        "finish_reason": str(completion.finish_reason),
        "completion_tokens": len(completion.token_ids),
    }
    if form.logprobs is not None:
        tokens = [
            _Alternatives(token, given, tokenizer)
            for token, given in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
        make = _of_chat if form.chat else _of_completion
        told["logprobs"] = make(tokens, form.logprobs)
    return told


class _Alternatives:
    """A token of an answer, and what vLLM gives with it: itself first, then the likeliest ones."""

    def __init__(self, token: int, given: Any, tokenizer: Any) -> None:
        self.all = [
            (_text(other, found, tokenizer), max(found.logprob, _LEAST))
            for other, found in given.items()
        ]
        self.text, self.logprob = self.all[list(given).index(token)]


def _of_chat(tokens: list[_Alternatives], count: int) -> dict[str, Any]:
    return {
        "content": [
            {
                **_entry(token.text, token.logprob),
                "top_logprobs": [_entry(*one) for one in token.all[:count]],
            }
            for token in tokens
        ]
    }


def _of_completion(tokens: list[_Alternatives], count: int) -> dict[str, Any]:
    offsets: list[int] = []
    at = 0
    for token in tokens:
        offsets.append(at)
        at += len(token.text)
    return {
        "text_offset": offsets,
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [dict(token.all[: count + 1]) for token in tokens],
    }


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace"))}


def _text(token: int, found: Any, tokenizer: Any) -> str:
    return found.decoded_token if found.decoded_token is not None else tokenizer.decode([token])


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
