"""Whatever stands in a request file, no row is lost, none counted twice and none changed."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import zstandard
from fuzz import BOM, Fuzzer, members
from support import MODEL, Declare, Taken, request_line, take_source

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.prefix.sorter import Sorter, hex_of
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.files.jsonl import RequestFiles
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

SEEDS = range(20)
LINES = 5000


def take(file: Path, batch_bytes: int = 2**20) -> Taken:
    """The file, read in batches of about this size."""
    return take_source(RequestFiles([file], MODEL, batch_bytes), MODEL)


def numbered(content: bytes) -> dict[int, tuple[int, bytes]]:
    """The lines that are rows, each with where it starts, by their numbers."""
    start = len(BOM) if content.startswith(BOM) else 0
    found: dict[int, tuple[int, bytes]] = {}
    for number, line in enumerate(content[start:].split(b"\n"), start=1):
        if line.strip():
            found[number] = start, line
        start += len(line) + 1
    return found


def asked(line: bytes) -> tuple[str, str]:
    """custom_id and body of a line, as Python's JSON reads it."""
    found = members(line.decode())
    return json.loads(found["custom_id"]), found["body"]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_line_is_a_request_or_a_rejection(tmp_path: Path, seed: int) -> None:
    """Each row is in one of the two, requests as they were asked, rejections as they stood."""
    fuzzer = Fuzzer(seed)
    content = fuzzer.file(LINES)
    file = tmp_path / "fuzz.jsonl"
    file.write_bytes(content)
    taken = take(file)

    rows = numbered(content)
    rejected = {rejection.line: rejection for rejection in taken.rejections}
    assert len(rejected) == len(taken.rejections)
    assert taken.input_rows == len(rows)
    wanted: dict[tuple[str, str], list[int]] = {}
    for number, (_, line) in rows.items():
        if number not in rejected:
            wanted.setdefault(asked(line), []).append(number)
    columns = taken.requests.select("custom_id", "body", "line", "input_rows")
    assert {(row[0], row[1]): row[2:] for row in columns.iter_rows()} == {
        request: (lines[0], len(lines)) for request, lines in wanted.items()
    }
    assert columns["custom_id"].n_unique() == columns.height
    assert fuzzer.good <= set(columns["custom_id"])

    for number, rejection in rejected.items():
        start, line = rows[number]
        assert (rejection.byte_offset, rejection.original) == (start, line.removesuffix(b"\r"))
        assert 0 < len(rejection.message) <= 500


@pytest.mark.parametrize("seed", range(4))
def test_where_a_file_is_cut_changes_nothing(tmp_path: Path, seed: int) -> None:
    """Read in batches of whatever size, and packed, a file gives the same rows."""
    dice = random.Random(seed)
    content = Fuzzer(seed + 2000).file(400)
    half = dice.randrange(len(content))
    files = {
        "plain.jsonl": content,
        "packed.jsonl.gz": gzip.compress(content[:half]) + gzip.compress(content[half:]),
        "packed.jsonl.zst": zstandard.compress(content[:half]) + zstandard.compress(content[half:]),
        "packed without a name for it": zstandard.compress(content),
    }
    found: list[list[object]] = []
    for name, stored in files.items():
        file = tmp_path / name
        file.write_bytes(stored)
        sizes = [1, 999, 2**25] if stored is content else [dice.randrange(1000, 50_000), 2**25]
        for size in sizes:
            taken = take(file, size)
            rejections = [rejection._replace(source="") for rejection in taken.rejections]
            rejections.sort(key=lambda rejection: rejection.line)
            found.append([taken.input_rows, taken.requests.drop("source").rows(), rejections])
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_half_a_packed_file_is_no_source(
    deployment: Deployment,
    declare: Declare,
    tables: Callable[[Job], Tables],
    suffix: str,
) -> None:
    """A packed file that breaks off anywhere stops the stage; the partition stays as it was."""
    pack = gzip.compress if suffix == "gz" else zstandard.compress
    source = {"requests": f"in.jsonl.{suffix}"}
    job = declare("files", {"source": source, "model": MODEL, "max_rejected": 1.0})
    file = deployment.root / f"in.jsonl.{suffix}"
    file.write_bytes(pack(request_line("before").encode()))
    take_in(job, deployment, tables(job), "all")
    whole = pack(Fuzzer(7).file(2000))
    dice = random.Random(7)
    for length in [len(whole) - 1, *(dice.randrange(6, len(whole)) for _ in range(5))]:
        file.write_bytes(whole[:length])
        with pytest.raises(SourceError, match=file.name):
            take_in(job, deployment, tables(job), "all")
        assert tables(job).read("raw_requests")["custom_id"].to_list() == ["before"]
        assert tables(job).count("rejected") == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_second_stage_loses_no_row(model_path: Path, tmp_path: Path, seed: int) -> None:
    """Of what was taken in, each row is mapped to a distinct request or refused."""
    file = tmp_path / "fuzz.jsonl"
    file.write_bytes(Fuzzer(seed + 3000).file(1000))
    raw = take(file).requests
    model = Model("m", model_path, "r", context_length=60)
    sorter = Sorter(ModelTokenizer(model_path), ChatTemplate(model_path), model, {}, "p", 2**30)
    mapped = pl.concat([sorter.add(part) for part in raw.iter_slices(300)])
    refused = [rejection.custom_id for rejection in sorter.refused]
    assert sorted([*mapped["custom_id"], *refused]) == sorted(raw["custom_id"])
    assert mapped["input_rows"].sum() + sum(r.input_rows for r in sorter.refused) == (
        raw["input_rows"].sum()
    )
    hashes = [hash_ for frame in sorter.sorted() for hash_ in hex_of(frame.hashes)]
    assert sorted(hashes) == sorted(mapped["request_hash"].unique())
    assert refused
    assert all(0 < len(rejection.message) <= 500 for rejection in sorter.refused)
