"""A worker that is killed at a chosen moment: `python crashing_worker.py TABLES PLAN MOMENT`."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from acdc_dagster.inference.worker import WorkOrder, work
from acdc_dagster.planning.plan import Plan
from acdc_dagster.tables import Appender, Tables


def die(*_: Any) -> None:
    """As `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(append: Any) -> Any:
    """Commit a chunk, and die."""

    def appended(self: Any, rows: Any) -> None:
        append(self, rows)
        die()

    return appended


def die_with_new_file(folder: Path) -> None:
    """Die as soon as a data file that was not there is."""
    there = set(folder.rglob("*.parquet"))
    while set(folder.rglob("*.parquet")) <= there:
        pass
    die()


def main(root: str, plan_file: str, moment: str) -> None:
    """Work, and die before the first commit, between its data file and itself, or after it."""
    tables = Tables(root, "job")
    plan = Plan.model_validate_json(Path(plan_file).read_text())
    if moment == "before":
        Appender.append = die  # type: ignore[method-assign]
    elif moment == "after":
        Appender.append = die_after(Appender.append)  # type: ignore[method-assign]
    else:
        folder = Path(tables.uri("inference"))
        threading.Thread(target=die_with_new_file, args=(folder,), daemon=True).start()
    adapter = "benchmarks.recorded:RecordedEngine"
    work(WorkOrder("p", 0, "run"), plan, tables, lambda _: None, threading.Event(), adapter)


if __name__ == "__main__":
    main(*sys.argv[1:])
