"""Work timed in fresh processes, and the ratios that come of it.

A piece of work is a function that gets everything ready and returns a function without arguments;
only the second is timed. `python -m benchmarks.measure MODULE FUNCTION ARGUMENTS` does one in this
process and prints what it took; `run` does one in a process of its own.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

Work = Callable[[], Any]


@dataclass(frozen=True)
class Taken:
    """What one piece of work took.

    Attributes:
        cpu: User and system seconds, child processes that have ended included.
        wall: Seconds.
        peak_gb: Highest resident set of the process in 10^9 bytes, imports and set-up included; of
            its largest child if that is larger.
        result: What the work returned.
    """

    cpu: float
    wall: float
    peak_gb: float
    result: Any


@dataclass(frozen=True)
class Step:
    """A piece of work by name, to be done in a process of its own.

    Attributes:
        module: Holds the function.
        function: Gets ready and returns what is timed.
        arguments: JSON.
        environment: Set for the process beside what is set here.
    """

    module: str
    function: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str] | None = None


def run(step: Step) -> Taken:
    """Do a step in a fresh process.

    Raises:
        RuntimeError: It failed; the message ends with what it wrote.
    """
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.measure"),
            *(step.module, step.function, json.dumps(dict(step.arguments))),
        ],
        env={**os.environ, **(step.environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{step.module}.{step.function} failed:\n{ended.stderr[-4000:]}")
    return Taken(**json.loads(ended.stdout.splitlines()[-1]))


def alternate(steps: Sequence[Step], rounds: int) -> list[list[Taken]]:
    """Do all steps in turn, `rounds` times over; what each took, in the order of `steps`.

    A machine that slows down or is shared slows all of them.
    """
    taken: list[list[Taken]] = [[] for _ in steps]
    for number in range(rounds):
        # Every other round backwards, so that none always runs after the same one.
        for at in range(len(steps)) if number % 2 == 0 else reversed(range(len(steps))):
            taken[at].append(run(steps[at]))
    return taken


def cpu(taken: Sequence[Taken]) -> float:
    """The median of CPU seconds."""
    return median(one.cpu for one in taken)


def peak_gb(taken: Sequence[Taken]) -> float:
    """The median of peaks, in 10^9 bytes."""
    return median(one.peak_gb for one in taken)


def summary(taken: Sequence[Taken]) -> dict[str, float]:
    """Medians for the record."""
    return {
        "cpu_s": round(cpu(taken), 4),
        "wall_s": round(median(one.wall for one in taken), 4),
        "peak_gb": round(peak_gb(taken), 3),
    }


def timed(work: Work) -> Taken:
    """Do work here and now."""
    cpu_before, wall_before = _cpu_seconds(), time.perf_counter()
    result = work()
    wall, spent = time.perf_counter() - wall_before, _cpu_seconds() - cpu_before
    return Taken(spent, wall, _peak_bytes() / 1e9, result)


def _cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _peak_bytes() -> int:
    own, children = (
        resource.getrusage(who).ru_maxrss * 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return max(own, children)


def main() -> None:
    """Do one step in this process; the last line of output is a `Taken` as JSON."""
    module, function, arguments = sys.argv[1:]
    work: Work = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    print(json.dumps(asdict(timed(work))))


if __name__ == "__main__":
    main()
