"""The worker as a process: signals, its parent's death, and how it ends."""

import os
import signal
import sys
import threading
from types import FrameType

from acdc_dagster.errors import AcdcError
from acdc_dagster.inference.events import Event, events_on_stdout
from acdc_dagster.inference.vllm_engine import VllmEngine
from acdc_dagster.inference.worker import Interrupted, WorkOrder, work
from acdc_dagster.planning.stage import read_plan
from acdc_dagster.tables import Tables

COMPLETE, FAILED, STOPPED = 0, 1, 3


def run_worker(order: WorkOrder, tables: Tables, stop_with_parent: bool) -> int:
    """Work on a shard until it is complete or something ends it.

    SIGTERM, SIGINT and, if asked, the parent's death end the work after a last commit.

    Returns:
        The exit code: 0 complete, 1 failed, 3 told to stop.
    """
    tell, stop = events_on_stdout(), threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    if stop_with_parent:
        threading.Thread(target=_wait_for_parents_end, args=(stop,), daemon=True).start()
    try:
        plan = read_plan(tables, order.partition)
        tell(work(order, plan, tables, VllmEngine, tell, stop))
    except Interrupted:
        return STOPPED
    except AcdcError as error:
        sys.stderr.write(f"{error}\n")
        tell(Event("failed", order.shard, problem=error.problem, remedy=error.remedy))
        return FAILED
    return COMPLETE


def _wait_for_parents_end(stop: threading.Event) -> None:
    """Standard input is a pipe from the parent that nobody writes to; it ends with the parent."""
    while os.read(0, 1024):
        pass
    stop.set()
