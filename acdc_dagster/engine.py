"""Settings of one engine, as an environment or a job declares them."""

from typing import Any

from pydantic import Field

from acdc_dagster.declared import Declared
from acdc_dagster.speculation import Speculation


class Engine(Declared):
    """Settings of one vLLM engine; `extra` passes any other engine argument by its vLLM name.

    A field that is written down is pinned: no plan takes another value.
    """

    tensor_parallel: int | None = Field(
        default=None, ge=1, description="GPUs that share each layer; planned if not given, else 1."
    )
    expert_parallel: int | None = Field(
        default=None, ge=1, description="GPUs that share the experts; planned if not given, else 1."
    )
    max_num_seqs: int = Field(default=64, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=16)
    block_size: int = Field(default=32, ge=1, description="KV block, tokens; a CPU takes 32s.")
    kv_cache_gib: int | None = Field(default=2, ge=1, description="CPU engine: KV memory.")
    dtype: str = "auto"
    speculation: Speculation | None = Field(
        default=None, description="How it drafts; planned if not written down; null: not at all."
    )
    extra: dict[str, Any] = Field(default_factory=dict)
    scheduler_plugin: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
        description="Class of a vLLM scheduler, `package.module.Class`; it gets hints.",
    )

    def with_own(self, own: "Engine") -> "Engine":
        """These settings with what `own` has written down in their place; `extra` is merged."""
        given = self.model_dump(exclude_unset=True) | own.model_dump(exclude_unset=True)
        if "extra" in given:
            given["extra"] = self.extra | own.extra
        return Engine.model_validate(given)
