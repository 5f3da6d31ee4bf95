"""Prefix order and LCP of tokenised requests, against sorting token lists in plain Python.

    python -m benchmarks.prefix_order [--quick] [--json]

The job is made here, seeded: prompts of 20 instructions of uneven popularity, each with an item of
its own. Both sides get the same token arrays and must find the same shared tokens. CPU seconds are
compared, the best of several alternating rounds.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from acdc_dagster.prefix.order import Tokens, prefix_order, shared_with_previous


def requests(rows: int, seed: int = 7) -> list[Tokens]:
    """Token ids of `rows` prompts of about 700 tokens, in shuffled order."""
    rng = np.random.default_rng(seed)
    instructions = [rng.integers(0, 49_152, 600, dtype=np.int32) for _ in range(20)]
    groups = np.minimum(rng.zipf(1.5, rows) - 1, len(instructions) - 1)
    return [
        np.concatenate(
            [instructions[group], rng.integers(0, 49_152, rng.integers(50, 150), dtype=np.int32)]
        )
        for group in groups
    ]


def ours(tokens: list[Tokens]) -> int:
    """Shared tokens by this package's order."""
    order = prefix_order(tokens)
    return int(shared_with_previous([tokens[at] for at in order]).sum())


def plain_python(tokens: list[Tokens]) -> int:
    """Shared tokens by `sorted` on lists and a loop over neighbours."""
    lists = sorted(ids.tolist() for ids in tokens)
    shared = 0
    for left, right in pairwise(lists):
        for one, other in zip(left, right, strict=False):
            if one != other:
                break
            shared += 1
    return shared


def cpu_seconds(work: Callable[[list[Tokens]], int], tokens: list[Tokens]) -> tuple[float, int]:
    """CPU seconds and result of one call."""
    start = time.process_time()
    result = work(tokens)
    return time.process_time() - start, result


def main() -> None:
    """Run, check that both sides agree, print the measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    rows, rounds = (2_000, 3) if options.quick else (20_000, 5)
    tokens = requests(rows)
    best = {"ours": float("inf"), "plain_python": float("inf")}
    for _ in range(rounds):
        results: set[int] = set()
        for name, work in (("ours", ours), ("plain_python", plain_python)):
            seconds, result = cpu_seconds(work, tokens)
            best[name] = min(best[name], seconds)
            results.add(result)
        assert len(results) == 1, "both sides must find the same shared tokens"  # noqa: S101
    measures = {
        "rows": rows,
        "shared_tokens": results.pop(),
        "plain_python_over_ours_cpu": round(best["plain_python"] / best["ours"], 2),
    }
    if options.json:
        print(json.dumps(measures))
    else:
        for name, value in measures.items():
            print(f"{name:<28} {value}")


if __name__ == "__main__":
    main()
