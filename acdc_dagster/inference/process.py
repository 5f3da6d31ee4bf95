"""The worker as a process: signals, its parent's death, and how it ends."""

import os
import signal
import sys
import threading
from collections.abc import Callable
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
    ending = _Ending(events_on_stdout())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ending.on_signal)
    if stop_with_parent:
        threading.Thread(target=ending.with_parent, daemon=True).start()
    try:
        plan = read_plan(tables, order.partition)
        ending.tell(work(order, plan, tables, VllmEngine, ending.tell, ending.stop))
    except Interrupted:
        return STOPPED
    except AcdcError as error:
        sys.stderr.write(f"{error}\n")
        ending.tell(Event("failed", order.shard, problem=error.problem, remedy=error.remedy))
        return FAILED
    return COMPLETE


class _Ending:
    """Ends the work between two steps of the engine, or at once while there is nothing to commit.

    A model can take minutes to load, and whoever cancels does not want to wait for it.
    """

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.stop = threading.Event()
        self._tell = tell
        self._answering = False

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        self._answering = event.kind in ("running", "progress")
        self._tell(event)

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Take a signal to stop."""
        self._end()

    def with_parent(self) -> None:
        """Wait for the end of standard input, a pipe that the parent never writes to."""
        while os.read(0, 1024):
            pass
        self._end()

    def _end(self) -> None:
        self.stop.set()
        if not self._answering:
            os._exit(STOPPED)
