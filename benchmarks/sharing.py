"""How much of their prompts the requests of public data sets share, as `acdc check` finds it.

    python -m benchmarks.sharing DATA_FOLDER OUT_FOLDER [--json] [--block-sizes 1 16 64]

Six jobs are made of the data, each a file of prompts for /v1/completions in OUT_FOLDER. These files
are looked for below DATA_FOLDER, gzipped or not; those with common names in a folder that is named
after the data set:

- `bbh`: BIG-Bench Hard (suzgunmirac/BIG-Bench-Hard), 27 tasks with three worked examples each;
  `bbh_and_cot_prompts.tar.gz` holds its `bbh/*.json` and `cot-prompts/*.txt`.
- `xquad`: XQuAD in English (google-deepmind/xquad), questions on 240 paragraphs; `xquad.en.json`.
- `banking77`: Banking77 (PolyAI-LDN/task-specific-datasets), messages to sort into 77 intents;
  `train.csv`.
- `products`: Amazon electronics of the Walmart-Amazon pair (AI-team-UoA/pyJedAI, data/ccer/D8), the
  first 8,000; `D8_amazon.csv`.
- `scitldr`: SciTLDR (allenai/scitldr), abstracts to summarise; `train.jsonl`.
- `qmsum`: QMSum (Yale-LILY/QMSum), some eight questions on each of 35 meetings; `test.jsonl`.

Beside what is found stand figures measured before this program was written. Of those, rows, mean
tokens and bounds were recorded, but not the wording of the prompts, which is rebuilt here to about
the same length: rows must agree, tokens and bounds nearly.
"""

import argparse
import csv
import gzip
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.bench import MODEL as MODEL_FOLDER
from benchmarks.data import MODEL

_PRODUCTS = 8_000


@dataclass(frozen=True)
class Recorded:
    """Figures of an earlier measurement.

    Attributes:
        rows: Requests.
        mean_tokens: Of a prompt, with the tokenizer of SmolLM2.
        bounds: KV block size in tokens → highest possible hit rate in percent.
    """

    rows: int
    mean_tokens: int
    bounds: dict[int, float]


RECORDED = {
    "bbh": Recorded(6_511, 963, {1: 91.8, 16: 91.0, 64: 89.1}),
    "xquad": Recorded(1_190, 214, {1: 76.6, 16: 73.3, 64: 62.5}),
    "banking77": Recorded(10_003, 576, {1: 97.7, 16: 97.2, 64: 88.9}),
    "products": Recorded(8_000, 116, {1: 43.1, 16: 38.4, 64: 1.1}),
    "qmsum": Recorded(281, 14_731, {1: 87.6, 16: 87.5, 64: 87.4}),
}


def opened(file: Path) -> io.TextIOBase:
    """The text of a file, gzipped or not."""
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8", errors="replace", newline="")
    return file.open(encoding="utf-8", errors="replace", newline="")


def found(data: Path, name: str, beside: str = "") -> Path:
    """The file `name`, gzipped or not, in a folder whose name contains `beside`."""
    for file in sorted([*data.rglob(name), *data.rglob(f"{name}.gz")]):
        if beside in file.parent.name:
            return file
    raise FileNotFoundError(f"No {name} or {name}.gz is below {data}.")


def bbh(data: Path) -> Iterator[str]:
    """A task's worked examples, then a question of the task."""
    with tarfile.open(found(data, "bbh_and_cot_prompts.tar.gz")) as archive:
        for name in sorted(archive.getnames()):
            if not name.startswith("bbh/") or not name.endswith(".json"):
                continue
            task = Path(name).stem
            worked = member(archive, f"cot-prompts/{task}.txt").partition("-----\n")[2].strip()
            for example in json.loads(member(archive, name))["examples"]:
                yield f"{worked}\n\nQ: {example['input']}\nA: Let's think step by step."


def member(archive: tarfile.TarFile, name: str) -> str:
    """The text of a file in an archive."""
    content = archive.extractfile(name)
    if content is None:
        raise FileNotFoundError(f"{archive.name} has no file {name}.")
    return content.read().decode()


def xquad(data: Path) -> Iterator[str]:
    """A paragraph, then a question on it."""
    with opened(found(data, "xquad.en.json")) as stream:
        articles = json.load(stream)["data"]
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield (
                    "Read the passage and answer the question with a few words from it.\n\n"
                    f"Passage: {paragraph['context']}\n\n"
                    f"Question: {question['question']}\nAnswer:"
                )


def banking77(data: Path) -> Iterator[str]:
    """All 77 intents, then a message."""
    with opened(found(data, "train.csv", "banking77")) as stream:
        rows = list(csv.DictReader(stream))
    labels = ", ".join(sorted({row["category"] for row in rows}))
    for row in rows:
        yield (
            "Classify the customer message into exactly one of these intents:\n"
            f"{labels}\n\nMessage: {row['text']}\nIntent:"
        )


def products(data: Path) -> Iterator[str]:
    """A short instruction, then a product's columns."""
    with opened(found(data, "D8_amazon.csv")) as stream:
        rows = csv.DictReader(stream, delimiter="|", quoting=csv.QUOTE_NONE)
        for row in islice(rows, _PRODUCTS):
            columns = ("title", "modelno", "price", "shipweight", "brand", "dimensions")
            described = "\n".join(f"{name}: {row[name] or ''}" for name in columns)
            yield (
                "You tag products of an electronics shop. Give the category, the brand and up to "
                "three tags of the product below. Answer with one JSON object with the fields "
                f"category, brand and tags, and nothing else.\n\n{described}"
            )


def scitldr(data: Path) -> Iterator[str]:
    """A short instruction, then an abstract."""
    with opened(found(data, "train.jsonl", "scitldr")) as stream:
        for line in stream:
            abstract = " ".join(json.loads(line)["source"])
            yield f"Summarise this abstract in one sentence.\n\n{abstract}"


def qmsum(data: Path) -> Iterator[str]:
    """A meeting's transcript, then a question on it."""
    with opened(found(data, "test.jsonl", "qmsum")) as stream:
        for line in stream:
            meeting = json.loads(line)
            turns = meeting["meeting_transcripts"]
            transcript = "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in turns)
            for asked in [*meeting["general_query_list"], *meeting["specific_query_list"]]:
                yield f"Meeting transcript:\n{transcript}\n\nQuery: {asked['query']}\nSummary:"


JOBS: dict[str, Callable[[Path], Iterator[str]]] = {
    make.__name__: make for make in (bbh, xquad, banking77, products, scitldr, qmsum)
}


def write_job(prompts: Iterator[str], file: Path) -> None:
    """An OpenAI-batch file of prompts."""
    with file.open("w", encoding="utf-8") as stream:
        for number, prompt in enumerate(prompts):
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 128, "temperature": 0}
            line = {
                "custom_id": f"{file.stem}-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": body,
            }
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def checked(file: Path, tokenizer: Path, block_size: int) -> dict[str, Any]:
    """What `acdc check` says about a file."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "acdc_dagster.cli", "check", str(file), "--json"),
            *("--tokenizer", str(tokenizer), "--block-size", str(block_size)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if not ended.stdout:
        raise RuntimeError(f"acdc check {file} failed:\n{ended.stderr[-4000:]}")
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def examined(name: str, file: Path, tokenizer: Path, block_sizes: list[int]) -> dict[str, Any]:
    """The findings on one job, beside those recorded earlier."""
    reports = {size: checked(file, tokenizer, size) for size in block_sizes}
    first = reports[block_sizes[0]]
    recorded = RECORDED.get(name)
    return {
        "rows": first["rows"],
        "valid": first["valid"],
        "duplicates": first["duplicates"],
        "mean_tokens": round(first["prompt_tokens"]["total"] / max(first["valid"], 1), 1),
        "sharing": round(100 * first["sharing"], 2),
        "bound": {size: round(100 * one["hit_rate"]["bound"], 2) for size, one in reports.items()},
        "file_order": {
            size: round(100 * one["hit_rate"]["file_order"], 2) for size, one in reports.items()
        },
        "recorded": None
        if recorded is None
        else {
            "rows": recorded.rows,
            "mean_tokens": recorded.mean_tokens,
            "bound": recorded.bounds,
        },
    }


def main() -> None:
    """Make the jobs, examine them, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("out", type=Path, metavar="OUT_FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="folder of the tokenizer")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # The file and not the folder: QMSum's prompts are longer than the model's context.
    tokenizer = options.model / "tokenizer.json"
    found: dict[str, dict[str, Any]] = {}
    for name in options.jobs:
        file = options.out / f"{name}.jsonl"
        write_job(JOBS[name](options.data), file)
        found[name] = examined(name, file, tokenizer, options.block_sizes)
        if not options.json:
            print(_as_text(name, found[name]), flush=True)
    if options.json:
        print(json.dumps(found))


def _as_text(name: str, found: dict[str, Any]) -> str:
    said = [f"{name}: {found['rows']} rows, {found['valid']} valid, {found['mean_tokens']} tokens"]
    said += [f"  sharing {found['sharing']} %, duplicates {found['duplicates']}"]
    recorded = found["recorded"]
    if recorded is not None:
        said += [f"  recorded: {recorded['rows']} rows, {recorded['mean_tokens']} tokens"]
    for size, bound in found["bound"].items():
        before = "" if recorded is None else f", recorded {recorded['bound'].get(size)} %"
        in_file = found["file_order"][size]
        said += [f"  block {size}: bound {bound} %{before}; in file order {in_file} %"]
    return "\n".join(said)


if __name__ == "__main__":
    main()
