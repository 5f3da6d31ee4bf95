"""A scheduler plug-in that only remembers what it is told of each request."""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler  # noqa: TID253

told: list[dict[str, Any] | None] = []


class RecordingScheduler(Scheduler):
    """vLLM's own, which also puts each request's `extra_args` into `told`."""

    def add_request(self, request: Any) -> None:
        """Remember, then schedule."""
        told.append(request.sampling_params.extra_args)
        super().add_request(request)
