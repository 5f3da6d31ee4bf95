"""An engine that answers nothing: it takes as long as a measured one, for simulations only.

A step takes a + b * tokens, which fits the steps of a real engine well (docs/benchmarks.md). No job
can name it: plans start vLLM.
"""

import json
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any

from acdc_dagster.deployment import Commit, Limits
from acdc_dagster.inference.engines.protocol import Answer, EngineState, Request
from acdc_dagster.planning.plan import EngineSettings, Plan, Shard


def simulated_plan(
    requests: int,
    extra: dict[str, Any],
    *,
    max_num_seqs: int = 32,
    commit: Commit | None = None,
    limits: Limits | None = None,
) -> Plan:
    """A plan of one shard for such an engine.

    Args:
        requests: Of the shard.
        extra: See `RecordedEngine`.
        max_num_seqs: Requests that run at once.
        commit: When a chunk is committed; the default of an environment if not given.
        limits: Likewise.
    """
    return Plan(
        backend="local",
        model="simulated",
        model_revision="1",
        engine=EngineSettings(
            model_path="",
            max_model_len=2**20,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=2**20,
            block_size=32,
            kv_cache_gib=None,
            dtype="auto",
            tensor_parallel=1,
            expert_parallel=1,
            extra=extra,
        ),
        shards=[Shard(number=0, start=0, stop=requests)],
        commit=commit or Commit(),
        limits=limits or Limits(),
        why=[],
    )


class RecordedEngine:
    """Runs requests for the steps that vLLM would need, each answer as long as `max_tokens` says.

    `settings.extra` holds `step_seconds` (a) and `token_seconds` (b); both may be 0.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._step_seconds = float(settings.extra.get("step_seconds", 0.0))
        self._token_seconds = float(settings.extra.get("token_seconds", 0.0))
        self._size = settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._generated = self._batch = 0

    @property
    def name(self) -> str:
        """Says that nothing was answered."""
        return "recorded 1"

    @property
    def device(self) -> str:
        """Says that there is none."""
        return "simulated"

    @property
    def unfinished(self) -> int:
        """See `Engine.unfinished`."""
        return len(self._waiting) + len(self._running)

    @property
    def state(self) -> EngineState:
        """See `Engine.state`."""
        return EngineState(
            running=self._batch,
            waiting=len(self._waiting),
            generated_tokens=self._generated,
        )

    def add(self, request: Request) -> None:
        """See `Engine.add`."""
        self._waiting.append(_Sequence(request))

    def abort(self, request_hashes: list[str]) -> None:
        """See `Engine.abort`."""
        gone = set(request_hashes)
        self._waiting = deque(s for s in self._waiting if s.request.request_hash not in gone)
        self._running = [s for s in self._running if s.request.request_hash not in gone]

    def step(self) -> list[Answer]:
        """One step: running requests make a token each, waiting ones are prefilled."""
        tokens = len(self._running)
        while self._waiting and len(self._running) < self._size and tokens < self._budget:
            sequence = self._waiting.popleft()
            tokens += sequence.request.prompt_tokens
            self._running.append(sequence)
        for sequence in self._running:
            sequence.made += 1
        self._batch = len(self._running)
        self._generated += self._batch
        time.sleep(self._step_seconds + self._token_seconds * tokens)
        finished = [s for s in self._running if s.made >= s.wanted]
        self._running = [s for s in self._running if s.made < s.wanted]
        return [sequence.answer() for sequence in finished]

    def close(self) -> None:
        """Nothing to free."""


class _Sequence:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.wanted = int(json.loads(request.sampling)["max_tokens"])
        self.made = 0
        self.since = datetime.now(UTC)

    def answer(self) -> Answer:
        return Answer(
            self.request.request_hash,
            self.since,
            datetime.now(UTC),
            text=f"answer to {self.request.request_hash}",
            finish_reason="stop",
            prompt_tokens=self.request.prompt_tokens,
            cached_tokens=0,
            completion_tokens=self.made,
        )
