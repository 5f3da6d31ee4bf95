"""The plan: how one partition runs. Data, kept as JSON in `profile`, and read by every worker."""

from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, model_validator

from acdc_dagster.deployment import Commit, Limits
from acdc_dagster.speculation import Speculation

Runner = Literal["generate", "pooling"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shard(_Frozen):
    """A contiguous range of the prefix order, run by one replica.

    Attributes:
        start: First position.
        stop: Position after the last.
    """

    number: int
    start: int
    stop: int

    @property
    def requests(self) -> int:
        """Requests in the shard."""
        return self.stop - self.start


class EngineSettings(_Frozen):
    """What a replica starts its engine with.

    Attributes:
        kv_cache_gib: KV memory of a CPU engine; a GPU engine takes what its card has left.
        runner: pooling for an engine that gives vectors in place of text.
        reasoning_parser: See `Model.reasoning_parser`.
        extra: Other engine arguments by the engine's own names.
        scheduler_plugin: Class of the scheduler in place of the engine's own; only it gets hints.
        adapter_path: Folder of the LoRA adapter that all requests are asked with.
        speculation: None: no tokens are drafted.
    """

    model_path: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_gib: int | None
    dtype: str
    tensor_parallel: int
    expert_parallel: int
    runner: Runner = "generate"
    reasoning_parser: str | None = None
    extra: dict[str, Any]
    scheduler_plugin: str | None = None
    adapter_path: str | None = None
    speculation: Speculation | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, data: Any) -> Any:
        """Plans and rows of `history` say speculative_tokens, which was always 0."""
        if isinstance(data, dict):
            fields = cast("dict[str, Any]", data)
            return {name: value for name, value in fields.items() if name != "speculative_tokens"}
        return data


class Predicted(_Frozen):
    """What the plan is expected to take.

    Attributes:
        pool: The devices, as `NAME:COUNT`.
        layout: As `T2-D4-E2`; see `planning.cost.layout`.
        seconds: From start to the last answer.
        cost: In the currency of the GPU's price; None if there is none.
        source: Where the figures come from.
        error: About how far the time may be off, as a share of it.
    """

    pool: str
    layout: str
    seconds: float
    gpu_seconds: float
    cost: float | None
    source: str
    error: float


class Plan(_Frozen):
    """How one partition runs.

    Attributes:
        backend: Who runs it.
        model: Name of the model as the job declares it.
        engine: Settings of each replica's engine.
        shards: One a replica (data parallel); empty if there is nothing to run.
        commit: When a worker commits a chunk of results.
        limits: How long a worker waits, and how often it tries.
        why: The reasons, in words.
        predicted: What it is expected to take; None if nothing can be predicted.
        pinned: Settings that the job or the environment has fixed, by name.
    """

    backend: str
    model: str
    model_revision: str
    engine: EngineSettings
    shards: list[Shard]
    commit: Commit
    limits: Limits
    why: list[str]
    predicted: Predicted | None = None
    pinned: list[str] = []

    @property
    def run(self) -> str:
        """JSON of what a run does; two plans that differ only in what they say run the same."""
        return self.model_dump_json(exclude={"why", "predicted", "pinned"})
