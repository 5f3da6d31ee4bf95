"""What vLLM's own server makes of a request, without an engine, and what this package makes."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import sorted_prompts

from acdc_dagster.models import Model
from acdc_dagster.requests.body import CHAT, Refused, parse_body


def serving(
    model: Path, template: str | None = None
) -> Callable[[str, dict[str, Any]], list[int] | None]:
    """What `vllm serve` makes of a body: (endpoint, body) to token ids, None if it is refused.

    With a template, what `--chat-template` makes of it.
    """
    from vllm.config import ModelConfig, VllmConfig
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers import renderer_from_config
    from vllm.renderers.online_renderer import OnlineRenderer

    config = ModelConfig(model=str(model), dtype="float32", max_model_len=4096)
    renderer = OnlineRenderer(
        config,
        renderer_from_config(VllmConfig(model_config=config)),
        request_logger=None,
        chat_template=template,
        chat_template_content_format="auto",
    )

    def ids(endpoint: str, asked: dict[str, Any]) -> list[int] | None:
        try:
            if endpoint == CHAT:
                request: Any = ChatCompletionRequest.model_validate(json.loads(json.dumps(asked)))
                _, prompts = asyncio.run(renderer.render_chat(request))
            else:
                request = CompletionRequest.model_validate(asked)
                prompts = asyncio.run(renderer.render_completion(request))
        except VLLMValidationError:
            return None
        (prompt,) = prompts
        return list(prompt["prompt_token_ids"])

    return ids


def ours(folder: Path, endpoint: str, bodies: list[dict[str, Any]]) -> list[list[int] | None]:
    """What the second stage makes of the same; None for what either stage refuses."""
    valid: list[dict[str, Any]] = []
    for body in bodies:
        try:
            parse_body(endpoint, json.dumps(body))
        except Refused:
            continue
        valid.append(body)
    _, ids = sorted_prompts(Model("m", folder, "r", 2**20), endpoint, valid)
    made = iter(ids)
    return [next(made) if body in valid else None for body in bodies]
