"""A worker's numbers as Prometheus reads them."""

import socket
import urllib.request

import pytest

from acdc_dagster.errors import BackendError
from acdc_dagster.inference.events import Event
from acdc_dagster.inference.prometheus import serve_metrics


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_the_newest_numbers_are_served_with_their_labels() -> None:
    """Counters end in _total, as Prometheus has them; nothing is there before the first event."""
    port = free_port()
    show = serve_metrics(port, "tagging", "2026-11-02")

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            return response.read().decode()

    assert "acdc_" not in read()
    show(Event("running", 3, computed=1))
    show(Event("progress", 3, computed=7, total=10, batch_fill=0.5))
    labels = 'job="tagging",partition="2026-11-02",shard="3"'
    told = read().splitlines()
    assert f"acdc_computed_total{{{labels}}} 7.0" in told
    assert f"acdc_total{{{labels}}} 10.0" in told
    assert f"acdc_batch_fill{{{labels}}} 0.5" in told


def test_a_port_that_is_taken_is_named() -> None:
    """With what to do."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BackendError, match=str(port)) as failure:
            serve_metrics(port, "tagging", "all")
    assert "--metrics-port" in failure.value.remedy
