"""The worker as a process: signals, its parent's death, and how it ends."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from msgspec.structs import replace

from acdc_dagster.errors import AcdcError
from acdc_dagster.inference.engines.process import Stopped
from acdc_dagster.inference.events import Event, events_on_stdout
from acdc_dagster.inference.worker import WorkOrder, work
from acdc_dagster.planning.stage import read_plan, read_retry_plan
from acdc_dagster.tables import Tables

COMPLETE, FAILED, DRAINED, ENDED_AT_ONCE = 0, 1, 3, 4


def run_worker(
    order: WorkOrder,
    tables: Tables,
    *,
    stop_with_parent: bool,
    show: Callable[[Event], None] | None = None,
) -> int:
    """Work on a shard until it is complete or something ends it.

    SIGTERM, SIGINT and, if asked, the parent's death end the work: requests that run have the
    plan's grace period, and all answers are committed. A second signal ends it at once, which is as
    safe as a crash.

    Args:
        order: The shard.
        tables: The job's tables.
        stop_with_parent: Whether to stop when standard input ends.
        show: Gets each event, beside standard output.

    Returns:
        The exit code: 0 complete, 1 failed, 3 told to stop.
    """
    tell = events_on_stdout()
    stop = threading.Event()
    last = Event("loading", order.shard)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(ENDED_AT_ONCE)  # the engine dies with this process
        stop.set()

    def on_event(event: Event) -> None:
        nonlocal last
        last = event
        tell(event)
        if show is not None:
            show(event)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    if stop_with_parent:
        threading.Thread(target=_stop_with_input, args=(stop,), daemon=True).start()
    try:
        read = read_plan if order.attempt == 1 else read_retry_plan
        plan = read(tables, order.partition)
        on_event(work(order, plan, tables, on_event, stop))
    except Stopped:
        return DRAINED
    except AcdcError as error:
        sys.stderr.write(f"{error}\n")
        on_event(replace(last, kind="failed", problem=error.problem, remedy=error.remedy))
        return FAILED
    return COMPLETE


def _stop_with_input(stop: threading.Event) -> None:
    """Wait for the end of standard input, a pipe that the parent never writes to."""
    while os.read(0, 1024):
        pass
    stop.set()
