"""The worker's live numbers for Prometheus, on request."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs

from acdc_dagster.errors import BackendError
from acdc_dagster.inference.events import Event

_COUNTERS = {
    "computed": "Requests answered",
    "failed": "Requests without an answer",
    "prompt_tokens": "Prompt tokens of answered requests",
    "cached_tokens": "Prompt tokens that the prefix cache held",
    "completion_tokens": "Tokens of answers",
    "generated_tokens": "Tokens made, of unfinished requests too",
    "preemptions": "Requests put back for want of KV memory",
    "drafts": "Times that tokens were speculated",
    "restarts": "Engines that died or hung",
}
_GAUGES = {
    "done": "Requests of the shard with a result, of earlier runs too",
    "total": "Requests of the shard",
    "running": "Requests in the engine's batch",
    "waiting": "Requests that the engine has beside them",
    "batch_fill": "Mean share of the batch's places in use",
    "kv_usage": "Share of the KV memory in use",
    "seconds_left": "Expected time to the end of the shard",
}


def serve_metrics(port: int, job: str, partition: str) -> Callable[[Event], None]:
    """Serve `acdc_*` metrics over HTTP, with the labels job, partition and shard.

    Args:
        port: 0 for any that is free.
        job: The job's name.
        partition: The partition key.

    Returns:
        What takes each event of the worker.

    Raises:
        BackendError: The port is taken, or prometheus_client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise BackendError(
            "Metrics need prometheus_client, which is not installed.",
            "Install it (vLLM brings it), or leave --metrics-port out.",
        ) from error
    latest = _Latest({"job": job, "partition": partition})
    registry = CollectorRegistry()
    registry.register(latest)
    try:
        start_http_server(port, registry=registry)
    except OSError as error:
        raise BackendError(
            f"Metrics cannot be served on port {port}: {error}", "Choose another --metrics-port."
        ) from error
    return latest.take


class _Latest:
    """The newest event as metrics; what the client library calls a collector."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._event: Event | None = None

    def take(self, event: Event) -> None:
        self._event = event

    def collect(self) -> Iterator[Any]:
        """The metrics, made when they are asked for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if self._event is None:
            return
        labels = {**self._labels, "shard": str(self._event.shard)}
        values = structs.asdict(self._event)
        for kind, names in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, meaning in names.items():
                family: Any = kind(f"acdc_{name}", meaning, labels=list(labels))
                family.add_metric(list(labels.values()), float(values[name]))
                yield family
