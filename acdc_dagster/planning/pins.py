"""What a plan may not change: settings that an environment or a job has written down."""

from dataclasses import dataclass

from acdc_dagster.deployment import Deployment
from acdc_dagster.engine import Engine
from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.planning.cost.layout import Fixed
from acdc_dagster.planning.cost.makespan import EngineLimits, Prediction
from acdc_dagster.planning.plan import EngineSettings, Runner

# Settings that are planned where nobody has written them down, beside replicas.
_PLANNED = (
    *("tensor_parallel", "expert_parallel", "max_num_seqs", "max_num_batched_tokens"),
    "speculation",
)


@dataclass(frozen=True)
class Pins:
    """The settings of an engine, and which of them are pinned.

    Attributes:
        engine: All settings; a planned one counts only if it is pinned.
        replicas: Workers; None: planned.
        places: Where each pinned setting stands, by its name.
    """

    engine: Engine
    replicas: int | None
    places: dict[str, str]

    def __str__(self) -> str:
        values = self.engine.model_dump() | {"replicas": self.replicas}
        return ", ".join(f"{name} {values[name]} ({at})" for name, at in self.places.items())

    def fixed(self, *, independent: bool) -> Fixed:
        """The degrees of parallelism that a layout has to have."""
        tensor, expert = (
            getattr(self.engine, name) if name in self.places else None
            for name in ("tensor_parallel", "expert_parallel")
        )
        return Fixed(tensor, self.replicas, expert, independent=independent)

    def limits(self, *, on_gpus: bool) -> EngineLimits:
        """What a replica's scheduler is told at most: what is pinned, else what suits a device."""
        engine, default = self.engine, EngineLimits()
        sequences, tokens = engine.max_num_seqs, engine.max_num_batched_tokens
        if on_gpus and "max_num_seqs" not in self.places:
            sequences = default.sequences
        if on_gpus and "max_num_batched_tokens" not in self.places:
            tokens = default.tokens
        return EngineLimits(sequences, tokens)

    def allow(self, limits: EngineLimits) -> bool:
        """Whether limits leave what is pinned as it is."""
        engine, pinned = self.engine, self.places
        return ("max_num_seqs" not in pinned or limits.sequences == engine.max_num_seqs) and (
            "max_num_batched_tokens" not in pinned or limits.tokens == engine.max_num_batched_tokens
        )

    def settings(
        self,
        model: Model,
        *,
        on_gpus: bool,
        best: Prediction | None = None,
        runner: Runner = "generate",
    ) -> EngineSettings:
        """What an engine is started with: what is declared, and the rest as in `best`."""
        engine, limits = self.engine, self.limits(on_gpus=on_gpus)
        tensor, expert = engine.tensor_parallel or 1, engine.expert_parallel or 1
        if best is not None:
            tensor, expert, limits = best.layout.tensor, best.layout.expert, best.limits
            if on_gpus and "max_num_seqs" not in self.places:
                limits = EngineLimits(best.sequences, limits.tokens)
        return EngineSettings(
            model_path=str(model.path),
            max_model_len=model.context_length,
            max_num_seqs=limits.sequences,
            max_num_batched_tokens=limits.tokens,
            block_size=engine.block_size,
            kv_cache_gib=engine.kv_cache_gib,
            dtype=engine.dtype,
            tensor_parallel=tensor,
            expert_parallel=expert,
            runner=runner,
            reasoning_parser=model.reasoning_parser,
            extra=engine.extra,
            scheduler_plugin=engine.scheduler_plugin,
            adapter_path=f"{model.adapter}" if model.adapter else None,
        )


def pins_of(job: Job | None, deployment: Deployment, *, elsewhere: bool = False) -> Pins:
    """The pins of a job.

    Args:
        job: Its own settings come before those of the environment; None: only those.
        deployment: Has the environment.
        elsewhere: Plan for other devices than the environment's, whose settings do not count then.
    """
    local = deployment.environment.backends.local
    places: dict[str, str] = {}
    engine, replicas = (
        (Engine(), None) if job is None else (job.declared.engine, job.declared.replicas)
    )
    own = {name: "the job" for name in _PLANNED if name in engine.model_fields_set}
    if replicas is not None:
        own["replicas"] = "the job"
    if not elsewhere:
        engine = local.engine.with_own(engine)
        environment = f"resources/{deployment.env}.yaml"
        places = {name: environment for name in _PLANNED if name in local.engine.model_fields_set}
        if replicas is None and (local.pool is None or "replicas" in local.model_fields_set):
            replicas, places["replicas"] = local.replicas, environment
    return Pins(engine, replicas, places | own)
