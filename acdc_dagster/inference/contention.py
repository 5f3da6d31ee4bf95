"""Whether others took the processor while an engine worked: its figures say little then."""

from contextlib import suppress
from pathlib import Path

# Share of the time that an engine's threads could have run and waited for a core instead.
_CONTENDED = 0.25


class CoreWatch:
    """Follows a process from now on.

    Linux counts for each thread in `/proc`, in nanoseconds, the time on a core and the time in a
    run queue. Where it does not, nothing is told and nothing is held against a run.

    Args:
        pid: Of the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ran, self._waited = _core_time(pid)

    @property
    def contended(self) -> bool:
        """Whether it has waited for a core for a quarter of the time it was busy since."""
        now = _core_time(self._pid)
        ran, waited = now[0] - self._ran, now[1] - self._waited
        return waited > _CONTENDED * (ran + waited)


def _core_time(pid: int) -> tuple[int, int]:
    ran = waited = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # the thread has ended
            on_core, in_queue, _ = map(int, thread.read_text().split())
            ran, waited = ran + on_core, waited + in_queue
    return ran, waited
