"""Whether others took the processor while an engine worked: its figures say little then."""

from contextlib import suppress
from pathlib import Path

# Share of the time that an engine's threads could have run and waited for a core instead.
_CONTENDED = 0.25


def is_contended(pid: int) -> bool:
    """Whether a process waited for a core for a quarter of its busy time, since it started.

    Linux counts both for each thread in `/proc`, in nanoseconds: the time on a core, and the time
    in a run queue. Where it does not, nothing is told and nothing is held against a run.
    """
    ran = waited = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # the thread has ended
            on_core, in_queue, _ = map(int, thread.read_text().split())
            ran, waited = ran + on_core, waited + in_queue
    return waited > _CONTENDED * (ran + waited)
