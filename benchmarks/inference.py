"""What the worker costs and gains, against a bare engine and against `vllm run-batch`.

    python -m benchmarks.inference [--quick] [--json] [--data FOLDER] [--rows N] [MEASURE ...]

The engine is vLLM on this machine's CPU with the sample model; `long_tail_occupancy` and
`peak_rss_growth` have one that only takes time (benchmarks/recorded.py). What each measure means is
in docs/benchmarks.md. With --data, the folder of the public sets that `benchmarks.sharing` names,
the requests are of BIG-Bench Hard, XQuAD and QMSum (its meetings cut to the context); without, made
from a seed.
"""

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.bench import MODEL as MODEL_FOLDER
from benchmarks.bench import Skipped
from benchmarks.data import MODEL, SETS, request_lines
from benchmarks.engines import ENVIRONMENT
from benchmarks.measure import Step, Taken, alternate, run
from benchmarks.sharing import bbh, qmsum, xquad

Chat = list[dict[str, str]]

_MODEL = str(MODEL_FOLDER)
_REPEATED = 0.06  # of the rows
_ANSWER_TOKENS = 8
_BLOCK = 32
_MEETING = 5_000  # characters of a transcript; with the question they fit the context
_QUESTION = "\n\nQuery: "


@dataclass
class Bench:
    """One run: its sizes, where its files are, and what was found."""

    folder: Path
    data: Path | None
    rows: int
    rounds: int
    simulated_rows: int
    found: dict[str, float] = field(default_factory=dict[str, float])
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def request_file(self, name: str) -> tuple[str, int]:
        """A shuffled OpenAI-batch file, and KV blocks so few that its order matters."""
        chats = list(self._chats(name))
        chats += chats[: int(_REPEATED * len(chats))]
        chats = [chats[at] for at in np.random.default_rng(3).permutation(len(chats))]
        file = self.folder / f"{name}.jsonl"
        file.write_text("\n".join(map(_line, range(len(chats)), chats)) + "\n")
        characters = max(sum(len(message["content"]) for message in chat) for chat in chats)
        longest = characters // 3 + 40 + _ANSWER_TOKENS  # in tokens, about
        return str(file), 17 * (longest // _BLOCK + 1)

    def names(self) -> list[str]:
        """The sets that are run."""
        return ["bbh", "xquad", "qmsum"] if self.data is not None else ["short"]

    def _chats(self, name: str) -> Iterator[Chat]:
        if self.data is None:
            lines = request_lines(SETS[name], self.rows)
            return (json.loads(line)["body"]["messages"] for line in lines)
        prompts = list({"bbh": bbh, "xquad": xquad, "qmsum": _cut_meetings}[name](self.data))
        # Whole groups, so that the few rows share what all share.
        some = prompts[:: len(prompts) // self.rows] if name == "bbh" else prompts
        return ([{"role": "user", "content": prompt}] for prompt in some[: self.rows])


def _cut_meetings(data: Path) -> Iterator[str]:
    for prompt in qmsum(data):
        meeting, query, asked = prompt.rpartition(_QUESTION)
        yield meeting[:_MEETING] + query + asked


def _line(number: int, chat: Chat) -> str:
    body = {
        "model": MODEL,
        "messages": chat,
        "max_tokens": _ANSWER_TOKENS,
        "temperature": 0,
    }
    line = {
        "custom_id": f"r{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    return json.dumps(line)


def _step(function: str, **arguments: Any) -> Step:
    return Step("benchmarks.engines", function, arguments, ENVIRONMENT)


def _median(taken: list[Taken], name: str) -> float:
    return median(one.result[name] for one in taken)


def _compare(bench: Bench, measure: str, name: str, theirs: list[Taken], ours: list[Taken]) -> None:
    """Note how many times our seconds theirs are, without the start of the engine and with it."""
    for ending, seconds in (("", "seconds"), ("_with_start", "with_start")):
        ratio = _median(theirs, seconds) / _median(ours, seconds)
        bench.found[f"{measure}{ending}_{name}"] = ratio


def worker_overhead(bench: Bench) -> None:
    """Wall seconds of a worker over those of the bare engine, from when each is up."""
    for name in bench.names():
        file, blocks = bench.request_file(name)
        place = str(bench.folder / f"overhead_{name}")
        ready = {"file": file, "folder": place, "model": _MODEL, "kv_blocks": blocks}
        bound = run(_step("prepared", **ready)).result["bound"]
        steps = [_step("worker", folder=place), _step("bare", folder=place)]
        ours, bare = alternate(steps, bench.rounds)
        bench.found[f"worker_overhead_{name}"] = _median(ours, "seconds") / _median(bare, "seconds")
        bench.found[f"hit_rate_vs_bound_{name}"] = _median(ours, "hit_rate") / bound
        bench.found[f"equal_answers_bare_{name}"] = _equal(ours[0], bare[0])
        bench.record[f"worker_overhead_{name}"] = _record(worker=ours, bare=bare)


def run_batch_vs_worker(bench: Bench) -> None:
    """Wall seconds of `vllm run-batch` over those of a job, on the same shuffled file."""
    for name in bench.names():
        file, blocks = bench.request_file(name)
        place = str(bench.folder / f"job_{name}")
        same = {"file": file, "model": _MODEL, "kv_blocks": blocks}
        steps = [
            _step("run_batch", out=str(bench.folder / "results.jsonl"), **same),
            _step("job", folder=place, **same),
        ]
        theirs, ours = alternate(steps, bench.rounds)
        _compare(bench, "run_batch_vs_worker", name, theirs, ours)
        bench.found[f"equal_answers_run_batch_{name}"] = _equal(ours[0], theirs[0])
        bench.record[f"run_batch_vs_worker_{name}"] = _record(run_batch=theirs, job=ours)


def daft_vs_worker(bench: Bench) -> None:
    """Wall seconds of Daft's vLLM provider, given rendered prompts, over those of a job."""
    if importlib.util.find_spec("daft") is None:
        raise Skipped("Daft is not installed; pip install daft brings it.")
    for name in bench.names():
        file, blocks = bench.request_file(name)
        texts = str(bench.folder / f"{name}.parquet")
        run(Step("benchmarks.peers", "texts", {"file": file, "model": _MODEL, "out": texts}))
        theirs_of = {"texts": texts, "max_tokens": _ANSWER_TOKENS}
        same = {"model": _MODEL, "kv_blocks": blocks}
        steps = [
            Step("benchmarks.daft_engine", "daft", {**theirs_of, **same}, ENVIRONMENT),
            _step("job", file=file, folder=str(bench.folder / f"beside_daft_{name}"), **same),
        ]
        theirs, ours = alternate(steps, bench.rounds)
        _compare(bench, "daft_vs_worker", name, theirs, ours)
        bench.found[f"equal_answers_daft_{name}"] = _equal(ours[0], theirs[0])
        bench.record[f"daft_vs_worker_{name}"] = _record(daft=theirs, job=ours)


def long_tail_occupancy(bench: Bench) -> None:
    """Running requests over the batch's places until 95 % of the tokens are made; simulated."""
    taken = _simulated(str(bench.folder / "tail"), 4000, 32, long_share=0.01, step=0.01)
    bench.found["long_tail_occupancy"] = taken.result["batch_fill"]


def peak_rss_growth(bench: Bench) -> None:
    """Peak memory of a worker with many requests of 32 kB over that with a tenth; simulated."""
    peaks: list[float] = []
    for rows in (bench.simulated_rows // 10, bench.simulated_rows):
        place = str(bench.folder / f"memory_{rows}")
        taken = _simulated(place, rows, 16_384, long_share=0.0, step=0.0)
        peaks.append(taken.result["own_peak_gb"])
    bench.found["peak_rss_growth"] = peaks[1] / peaks[0]
    bench.record["peak_rss_gb"] = peaks


def _simulated(
    folder: str, rows: int, prompt_tokens: int, *, long_share: float, step: float
) -> Taken:
    """The worker alone: its requests are written by another process."""
    rows_of = {"rows": rows, "prompt_tokens": prompt_tokens, "long_share": long_share}
    tokens = run(_step("filled", folder=folder, **rows_of)).result
    return run(_step("simulated", folder=folder, rows=rows, answer_tokens=tokens, step=step))


def _equal(one: Taken, other: Taken) -> float:
    """Share of the answers that are equal."""
    mine, theirs = one.result["texts"], other.result["texts"]
    if mine.keys() != theirs.keys():
        raise RuntimeError("the two sides did not answer the same requests")
    return sum(mine[name] == theirs[name] for name in mine) / len(mine)


def _record(**sides: list[Taken]) -> dict[str, Any]:
    names = ("seconds", "with_start", "hit_rate", "batch_fill", "bound")
    return {
        side: {
            "cpu_with_start": [round(one.cpu, 1) for one in taken],
            **{
                name: [round(one.result[name], 4) for one in taken]
                for name in names
                if name in taken[0].result
            },
        }
        for side, taken in sides.items()
    }


MEASURES: dict[str, Callable[[Bench], None]] = {
    measure.__name__: measure
    for measure in (
        worker_overhead,
        run_batch_vs_worker,
        daft_vs_worker,
        long_tail_occupancy,
        peak_rss_growth,
    )
}


def main() -> None:
    """Take the measures and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--quick", action="store_true", help="see that it works; not to be quoted")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--data", type=Path, help="folder of the public data sets")
    parser.add_argument("--rows", type=int, help="distinct requests of the real engine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            Path(folder),
            options.data,
            rows=options.rows or (60 if options.quick else 240),
            rounds=1 if options.quick else 3,
            simulated_rows=2_000 if options.quick else 200_000,
        )
        for name in options.measures or MEASURES:
            try:
                MEASURES[name](bench)
            except Skipped as skipped:
                bench.skipped[name] = str(skipped)
            if not options.json:
                print(
                    json.dumps(
                        {
                            "found": bench.found,
                            "skipped": bench.skipped,
                            "record": bench.record,
                        },
                        indent=2,
                    )
                )
        if options.json:
            print(json.dumps({**bench.found, "skipped": bench.skipped, "record": bench.record}))


if __name__ == "__main__":
    main()
