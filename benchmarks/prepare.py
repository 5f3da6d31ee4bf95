"""What preparation costs, against bounds and against what one would do instead.

    python -m benchmarks.prepare [--quick] [--json] [--rows N] [--folder FOLDER]

Every figure is a ratio, a share or a bound that is looked at in the same run on the same data, made
by `benchmarks.data`; what each means is in docs/benchmarks.md. Ratios are of the medians of CPU
seconds, user and system; the two sides take turns, each time in a fresh process, and are timed
after imports and one warm-up of a few rows. A measure that cannot be taken is listed with the
reason.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.bench import FULL, MODEL, QUICK, Bench, Skipped
from benchmarks.measure import Step, cpu, peak_gb, run

# The environment variable that says in how many GiB preparation sorts; what is more is spilled.
_SORT_MEMORY = "ACDC_SORT_MEMORY_GIB"
_SHARDS = 64


def prepare_vs_parse(bench: Bench, name: str) -> None:
    """Preparing a file over parsing it; for `three`, also the memory that it took."""
    file = bench.requests(name)
    ours, bound = f"prepare_{name}", f"parse_{name}"
    taken = bench.compare(
        **{ours: bench.prepared(file), bound: Step("benchmarks.peers", "parse", {"file": file})}
    )
    bench.found[f"prepare_vs_parse_{name}"] = cpu(taken[ours]) / cpu(taken[bound])
    if name == "three":
        gigabytes = Path(file).stat().st_size / 1e9
        bench.found["peak_gb"] = peak_gb(taken[ours])
        bench.found["peak_gb_bound"] = 0.7 + 0.5 * gigabytes
        bench.record["jsonl_gb_three"] = round(gigabytes, 4)
        arguments = {"folder": str(bench.folder / "prepared"), "name": "otherwise"}
        sizes = run(Step("benchmarks.ours", "table_sizes", arguments)).result
        bench.record["sorted_requests_bytes"] = sizes
        for other in ("shuffled", "front_coded"):
            bench.found[f"sorted_vs_{other}_size"] = sizes["sorted"] / sizes[other]


def naive_vs_prepare(bench: Bench) -> None:
    """The straightforward way on a few rows over this package on all, per row."""
    rows = bench.scale.naive_rows
    few = bench.requests("three", rows)
    arguments = {"file": few, "model": bench.model, "out": str(bench.folder / "naive.parquet")}
    naive = Step("benchmarks.peers", "naive", arguments)
    same = Step("benchmarks.peers", "naive", {**arguments, "package_tokenizer": True})
    everything = bench.prepared(bench.requests("three"))
    taken = bench.compare(naive=naive, naive_same_tokenizer=same, prepare_beside_naive=everything)
    check = run(bench.prepared(few, "few")).result
    for name in ("naive", "naive_same_tokenizer"):
        _must_agree(check, taken[name][0].result, "distinct", "prompt_tokens", "shared_tokens")
        per_row = cpu(taken[name]) / rows
        ours = cpu(taken["prepare_beside_naive"]) / bench.scale.rows
        bench.found[f"{name}_vs_prepare"] = per_row / ours
    bench.record["naive_rows"] = rows


def daft_vs_order(bench: Bench, name: str) -> None:
    """Daft's prefix routing over this package's order and LCP, from the same Parquet of texts."""
    if importlib.util.find_spec("daft") is None:
        raise Skipped("Daft is not installed; pip install daft to compare with it.")
    texts = bench.texts(name)
    orders = {side: str(bench.folder / f"{name}_{side}.npy") for side in ("ours", "daft")}
    taken = bench.compare(
        **{
            f"daft_{name}": Step(
                "benchmarks.peers",
                "daft_order",
                {"texts": texts, "out": orders["daft"]},
                {"DO_NOT_TRACK": "true", "DAFT_PROGRESS_BAR": "0"},
            ),
            f"order_{name}": Step(
                "benchmarks.ours", "order_texts", {"texts": texts, "out": orders["ours"]}
            ),
        }
    )
    bench.found[f"daft_vs_order_{name}"] = cpu(taken[f"daft_{name}"]) / cpu(taken[f"order_{name}"])
    arguments = {"tokens": bench.tokens(name), "orders": orders}
    rates = run(Step("benchmarks.ours", "hit_rates", arguments)).result
    for side in orders:
        bench.found[f"hit_rate_{side}_{name}"] = rates[side]


def order_vs_sort(bench: Bench) -> None:
    """Order and LCP over a bare sort of the same bytes; and plain Python over order and LCP."""
    tokens, few = bench.tokens("three"), bench.scale.naive_rows
    taken = bench.compare(
        order_tokens=Step("benchmarks.ours", "order_tokens", {"tokens": tokens}),
        sort_tokens=Step("benchmarks.peers", "sort_tokens", {"tokens": tokens}),
        order_few=Step("benchmarks.ours", "order_tokens", {"tokens": tokens, "rows": few}),
        sort_lists=Step("benchmarks.peers", "sort_lists", {"tokens": tokens, "rows": few}),
    )
    _must_agree(
        {"shared": taken["order_few"][0].result},
        {"shared": taken["sort_lists"][0].result},
        "shared",
    )
    bench.found["order_vs_sort"] = cpu(taken["order_tokens"]) / cpu(taken["sort_tokens"])
    bench.found["plain_python_vs_order"] = cpu(taken["sort_lists"]) / cpu(taken["order_few"])


def hit_prediction(bench: Bench) -> None:
    """The predicted hit rate of the prefix order against the simulated one."""
    arguments = {"tokens": bench.tokens("three"), "orders": {}}
    rates = run(Step("benchmarks.ours", "hit_rates", arguments)).result
    bench.found["hit_prediction_error"] = abs(rates["predicted"] - rates["sorted"])
    shuffled = abs(rates["predicted_shuffled"] - rates["shuffled"])
    bench.found["hit_prediction_error_shuffled"] = shuffled


def bounded_memory(bench: Bench) -> None:
    """Peaks at two sizes when little memory is given, and how much of the input is spilled."""
    given = {_SORT_MEMORY: str(bench.scale.bounded_gib)}
    files = [bench.requests("three", rows) for rows in bench.scale.bounded_rows]
    small = run(bench.prepared(files[0], "bounded", given))
    if not small.result["spilled_bytes"]:
        raise Skipped(f"Nothing was spilled with {_SORT_MEMORY}={bench.scale.bounded_gib}.")
    large = run(bench.prepared(files[1], "bounded", given))
    bench.found["peak_gb_bounded"] = large.peak_gb
    bench.found["peak_gb_bounded_small"] = small.peak_gb
    bench.found["peak_gb_bounded_ratio"] = large.peak_gb / small.peak_gb
    size = Path(files[1]).stat().st_size
    bench.found["spill_share"] = large.result["spilled_bytes"] / size
    bench.record |= {"bounded": asdict(large), "bounded_small": asdict(small)}


def shard_cuts(bench: Bench, name: str) -> None:
    """Hits lost to the cuts, and how unevenly work falls on the shards."""
    arguments = {"tokens": bench.tokens(name), "count": _SHARDS}
    cut = run(Step("benchmarks.ours", "shards", arguments)).result
    suffix = "" if name == "three" else f"_{name}"
    bench.found[f"shard_loss{suffix}"] = cut["loss"]
    bench.found[f"shard_imbalance{suffix}"] = cut["imbalance"]


# Name → what is measured; each fills `Bench.found`.
MEASURES: dict[str, Callable[[Bench], None]] = {
    "prepare_vs_parse_three": lambda bench: prepare_vs_parse(bench, "three"),
    "prepare_vs_parse_seed": lambda bench: prepare_vs_parse(bench, "seed"),
    "prepare_vs_parse_flat": lambda bench: prepare_vs_parse(bench, "flat"),
    "naive_vs_prepare": naive_vs_prepare,
    "daft_vs_order_three": lambda bench: daft_vs_order(bench, "three"),
    "daft_vs_order_seed": lambda bench: daft_vs_order(bench, "seed"),
    "order_vs_sort": order_vs_sort,
    "hit_prediction_error": hit_prediction,
    "peak_gb_bounded": bounded_memory,
    "shard_loss": lambda bench: shard_cuts(bench, "three"),
    "shard_loss_half": lambda bench: shard_cuts(bench, "half"),
}


def _must_agree(left: Mapping[str, Any], right: Mapping[str, Any], *names: str) -> None:
    """A speed is worth nothing if the two sides did not find the same."""
    for name in names:
        if left[name] != right[name]:
            raise RuntimeError(f"{name} differs: {left[name]} and {right[name]}")


def measured(bench: Bench, only: set[str]) -> None:
    """Take the measures in turn, or those named; say on standard error which one runs."""
    for name, measure in MEASURES.items():
        if only and name not in only:
            continue
        print(f"{name} …", file=sys.stderr)
        try:
            measure(bench)
        except Skipped as why:
            bench.skipped[name] = str(why)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rows: does it work at all?")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--rows", type=int, help="rows of the largest set, instead of 100,000")
    parser.add_argument("--folder", type=Path, help="keep the data here; else a temporary folder")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder with the tokenizer")
    parser.add_argument("measures", nargs="*", choices=[[], *MEASURES], help="only these")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    if options.rows:
        few = min(scale.naive_rows, options.rows)
        bounded = (options.rows, 10 * options.rows)
        scale = replace(scale, rows=options.rows, naive_rows=few, bounded_rows=bounded)
    with tempfile.TemporaryDirectory(prefix="acdc-benchmark-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder, scale, str(options.model))
        measured(bench, set(options.measures))
    if options.json:
        print(json.dumps({**bench.found, "skipped": bench.skipped, "record": bench.record}))
        return
    for name, value in bench.found.items():
        print(f"{name:<34}{value:>10.4g}")
    for name, why in bench.skipped.items():
        print(f"{name:<34}   skipped: {why}")


if __name__ == "__main__":
    main()
