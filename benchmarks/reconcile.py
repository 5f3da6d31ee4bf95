"""What bringing answers back to their rows costs, against writing the same rows.

    python -m benchmarks.reconcile [--quick] [--json] [--rows N] [--folder FOLDER]

- `reconcile_vs_write`: a first reconcile of N results by a JSON schema of four properties, each
  answer different, over sorting the same rows and writing them as Parquet with polars; both as CPU
  seconds, taken in turn in fresh processes.
- `upsert_vs_merge`: a repair, stage 5 again once every fifth request has a second answer, over
  merging these rows into `outputs` with delta-rs; as CPU seconds likewise.
- `peak_vs_size`: the memory that the reconcile added to what its process had with next to nothing
  to reconcile, over the size of the rows in memory.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Step, alternate, cpu, peak_gb, run, summary

_ROWS, _QUICK_ROWS = 1_000_000, 20_000
_ROUNDS = 3


def measured(folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    """The measures, and what each side took."""
    places = {"full": str(folder / "full"), "empty": str(folder / "empty")}
    for name, count in (("full", rows), ("empty", 1)):
        run(Step("benchmarks.outputs", "results", {"folder": places[name], "rows": count}))
    ours = Step("benchmarks.outputs", "reconciled", {"folder": places["full"]})
    bound = Step("benchmarks.outputs", "written", {"folder": places["full"]})
    run(ours)  # the bound writes what it made
    taken, written = alternate([ours, bound], rounds)
    idle = run(Step("benchmarks.outputs", "reconciled", {"folder": places["empty"]}))
    size = float(written[0].result)
    run(Step("benchmarks.outputs", "asked_again", {"folder": places["full"]}))
    run(ours)
    merge = Step("benchmarks.outputs", "merged", {"folder": places["full"]})
    repaired, merged = alternate([ours, merge], rounds)
    return {
        "reconcile_vs_write": cpu(taken) / cpu(written),
        "upsert_vs_merge": cpu(repaired) / cpu(merged),
        "peak_vs_size": (peak_gb(taken) - idle.peak_gb) / size,
        "record": {
            "rows": rows,
            "rows_gb": round(size, 4),
            "reconcile": summary(taken),
            "write": summary(written),
            "repair": summary(repaired),
            "merge": summary(merged),
            "idle_gb": round(idle.peak_gb, 3),
        },
    }


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_ROWS:,} rows, one round")
    parser.add_argument("--rows", type=int, help=f"instead of {_ROWS:,}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    rows = options.rows or (_QUICK_ROWS if options.quick else _ROWS)
    with tempfile.TemporaryDirectory(prefix="acdc-bench-") as temporary:
        found = measured(options.folder or Path(temporary), rows, 1 if options.quick else _ROUNDS)
    if options.json:
        print(json.dumps(found))
        return
    for name in ("reconcile_vs_write", "upsert_vs_merge", "peak_vs_size"):
        print(f"{name:<24}{found[name]:>10.4g}")


if __name__ == "__main__":
    main()
