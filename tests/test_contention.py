"""Whether others took the processor."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acdc_dagster.inference.contention import CoreWatch

BUSY = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"


def test_processes_that_share_a_core_are_contended() -> None:
    """Four on one core each wait for most of the time; one that sleeps does not."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not count how long threads wait")
    core = {min(os.sched_getaffinity(0))}
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(4)]
    idle = subprocess.Popen(["sleep", "60"])
    try:
        for process in busy:
            os.sched_setaffinity(process.pid, core)
        time.sleep(1)  # to be started
        watches = [CoreWatch(process.pid) for process in busy]
        asleep = CoreWatch(idle.pid)
        time.sleep(2)
        assert any(watch.contended for watch in watches)
        assert not asleep.contended
    finally:
        for process in (*busy, idle):
            process.kill()
            process.wait()
