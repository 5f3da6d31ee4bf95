"""Lengths of answers in real jobs and traces, in prefix order, for the sample and for drift.

Answers of data sets are those of people, in characters; those of traces are of models, in tokens.
"""

import ast
import csv
import gzip
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import sharing


@dataclass(frozen=True)
class Job:
    """A job in prefix order.

    Attributes:
        lcp: int64[N], shared with the request before.
        answers: int64[N].
    """

    name: str
    lcp: NDArray[np.int64]
    answers: NDArray[np.int64]


def _bbh(data: Path) -> Iterator[str]:
    with tarfile.open(sharing.found(data, "bbh_and_cot_prompts.tar.gz")) as archive:
        for name in sorted(archive.getnames()):
            if name.startswith("bbh/") and name.endswith(".json"):
                for example in json.loads(sharing.member(archive, name))["examples"]:
                    yield example["target"]


def _xquad(data: Path) -> Iterator[str]:
    with sharing.opened(sharing.found(data, "xquad.en.json")) as stream:
        for article in json.load(stream)["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield question["answers"][0]["text"]


def _banking77(data: Path) -> Iterator[str]:
    with sharing.opened(sharing.found(data, "train.csv", "banking77")) as stream:
        for row in csv.DictReader(stream):
            yield row["category"]


def _scitldr(data: Path) -> Iterator[str]:
    with sharing.opened(sharing.found(data, "train.jsonl", "scitldr")) as stream:
        for line in stream:
            yield json.loads(line)["target"][0]


def _qmsum(data: Path) -> Iterator[str]:
    with sharing.opened(sharing.found(data, "test.jsonl", "qmsum")) as stream:
        for line in stream:
            meeting = json.loads(line)
            for asked in [*meeting["general_query_list"], *meeting["specific_query_list"]]:
                yield asked["answer"]


_ANSWERS: dict[str, Callable[[Path], Iterator[str]]] = {
    "bbh": _bbh,
    "xquad": _xquad,
    "banking77": _banking77,
    "scitldr": _scitldr,
    "qmsum": _qmsum,
}


def jobs(data: Path) -> list[Job]:
    """Data sets and the Mooncake trace, whose prompts have blocks of 512 tokens by number."""
    found: list[Job] = []
    for name, answers in _ANSWERS.items():
        prompts = list(sharing.JOBS[name](data))
        rows = sorted(zip(prompts, map(len, answers(data)), strict=True))
        found.append(_in_order(name, [prompt for prompt, _ in rows], [size for _, size in rows]))
    with gzip.open(sharing.found(data, "conversation_trace.jsonl"), "rt") as stream:
        asked = [json.loads(line) for line in stream]
    asked.sort(key=lambda row: row["hash_ids"])
    blocks = [row["hash_ids"] for row in asked]
    return [*found, _in_order("mooncake", blocks, [row["output_length"] for row in asked])]


def _in_order(name: str, prompts: list[str] | list[list[int]], answers: list[int]) -> Job:
    shared = [_common(before, after) for before, after in pairwise(prompts)]
    return Job(name, np.array([0, *shared]), np.array(answers))


def _common(one: str | list[int], other: str | list[int]) -> int:
    """Leading items of two sorted neighbours that are equal, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def traces(data: Path) -> dict[str, NDArray[np.int64]]:
    """Answers of traces whose prompts are not known."""
    found: dict[str, NDArray[np.int64]] = {}
    for name, file in (
        ("azure conversations", "AzureLLMInferenceTrace_conv.csv"),
        ("arxiv summaries", "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"),
        ("splitwise code", "splitwise_code.csv"),
    ):
        with sharing.opened(sharing.found(data, file)) as stream:
            rows = list(csv.DictReader(stream))
        column = next(each for each in rows[0] if each in ("GeneratedTokens", "num_decode_tokens"))
        found[name] = np.array([int(row[column]) for row in rows])
    return found


def windows(data: Path) -> dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]]:
    """Of each ServeGen client: answer lengths and their shares, for one window after another."""
    found: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = {}
    for file in sorted(data.rglob("*-dataset.json.gz")):
        with gzip.open(file, "rt") as stream:
            told = json.load(stream)
        spread = [ast.literal_eval(told[start]["output_tokens"]) for start in told if told[start]]
        found[file.name.removesuffix("-dataset.json.gz")] = [
            (np.array(list(each)), np.array(list(each.values())) / sum(each.values()))
            for each in spread
            if each
        ]
    return found
