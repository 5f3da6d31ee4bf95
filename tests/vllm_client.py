"""Asks vLLM's adapter, in this process, as stage 2 and the worker do."""

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from acdc_dagster.inference.engines.protocol import Answer, Request
from acdc_dagster.inference.engines.vllm_engine import VllmEngine
from acdc_dagster.planning.plan import EngineSettings
from acdc_dagster.prefix.identity import settings_of
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.body import CHAT, EMBEDDINGS, ChatBody, parse_body

NUMBERS = count()
MESSAGES = [{"role": "user", "content": "Name three fruits."}]
ROOM = 64


def started(model_path: Path, **changes: Any) -> VllmEngine:
    """A small engine on the CPU."""
    for name, value in (
        ("OMP_NUM_THREADS", "1"),
        ("NUMBA_NUM_THREADS", "1"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ):
        os.environ.setdefault(name, value)
    given: dict[str, Any] = {
        "model_path": str(model_path),
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "block_size": 32,
        "kv_cache_gib": 1,
        "dtype": "float32",
        "tensor_parallel": 1,
        "expert_parallel": 1,
        "extra": {"enforce_eager": True},
        **changes,
    }
    return VllmEngine(EngineSettings(**given))


class Client:
    """Asks the engine as stage 2 and the worker do."""

    def __init__(self, engine: VllmEngine, model_path: Path) -> None:
        self._engine = engine
        self._tokenizer = ModelTokenizer(model_path)
        self._template = ChatTemplate(model_path)

    def ids(self, endpoint: str, body: dict[str, Any]) -> list[int]:
        """The token ids of a body's prompt."""
        parsed = parse_body(endpoint, json.dumps(body))
        chat = isinstance(parsed, ChatBody)
        text = self._template.render(parsed) if isinstance(parsed, ChatBody) else parsed.text
        if not isinstance(text, str):
            return text
        return self._tokenizer.encode([text], chat=chat)[0].tolist()

    def ask(self, endpoint: str = CHAT, **body: Any) -> Answer:
        """The answer to a body."""
        asked = {"model": "m", **body}
        if endpoint != EMBEDDINGS:
            asked = {"temperature": 0, "max_tokens": 12, **asked}
        asked |= {"messages": MESSAGES} if endpoint == CHAT and "messages" not in body else {}
        ids = self.ids(endpoint, asked)
        sampling = settings_of(parse_body(endpoint, json.dumps(asked)), {})
        text = sampling.sampling(sampling.max_tokens(ROOM))
        tokens = np.array(ids, dtype="<u2").tobytes()
        self._engine.add(Request(f"{next(NUMBERS):032x}", tokens, len(ids), text, ROOM, 0))
        while not (answers := self._engine.step()):
            pass
        (answer,) = answers
        return answer
