"""The SHA-256 of a source's chunks, and what a run says of a source that changed."""

import gzip
import hashlib
from collections.abc import Callable
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from support import MODEL, Declare, request_line, take_source
from support_table import drain, open_source, over_table, store

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.requests.files.jsonl import RequestFiles
from acdc_dagster.requests.files.remote import remote_files
from acdc_dagster.requests.source_chunks import SourceChunk
from acdc_dagster.requests.stage import take_in
from acdc_dagster.requests.tables.row_chunks import RowChunks
from acdc_dagster.requests.tables.slices import Slice
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]
LINES = [request_line(f"r{n}", "x" * (n % 50)) for n in range(200)]


def chunks_of(file: Path, size: int = 5000) -> list[SourceChunk]:
    """The chunks of a request file that is read to its end."""
    source = RequestFiles([file], MODEL, batch_bytes=size)
    take_source(source, MODEL)
    return source.chunks


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_the_chunks_of_a_file_are_its_bytes(
    tmp_path: Path, start: str, end: str, last: str
) -> None:
    """Each names its place in the unpacked file, cut at line ends; together they are the file."""
    content = (start + end.join(LINES) + last).encode()
    file = tmp_path / "in.jsonl"
    file.write_bytes(content)
    chunks = chunks_of(file)
    assert len(chunks) > 3
    offset, line = 0, 1
    for chunk in chunks:
        assert (chunk.byte_offset, chunk.first_line) == (offset, line)
        part = content[offset : offset + (chunk.bytes or 0)]
        assert chunk.sha256 == hashlib.sha256(part).hexdigest()
        assert chunk.rows == len(part.removesuffix(b"\n").split(b"\n"))
        offset, line = offset + len(part), line + chunk.rows
    assert offset == len(content)
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(content))
    assert [chunk._replace(source="") for chunk in chunks_of(packed)] == [
        chunk._replace(source="") for chunk in chunks
    ]


def test_an_empty_file_has_an_empty_chunk(tmp_path: Path) -> None:
    """So a file that was there is told from one that was not."""
    file = tmp_path / "in.jsonl"
    file.touch()
    nothing = hashlib.sha256().hexdigest()
    assert chunks_of(file) == [SourceChunk(str(file), 1, 0, 0, 0, nothing, None)]


def test_the_chunks_of_a_remote_file_are_its_lines(tmp_path: Path) -> None:
    """Cut by the same rule, whatever ends the lines; where they begin cannot be told."""
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(LINES) + "\n")
    source = RequestFiles(remote_files(file.as_uri(), {}), MODEL, batch_bytes=5000)
    taken = take_source(source, MODEL)
    assert taken.input_rows == 200
    first = 0
    for chunk in source.chunks:
        text = "".join(f"{line}\n" for line in LINES[first : first + chunk.rows]).encode()
        assert chunk.sha256 == hashlib.sha256(text).hexdigest()
        assert (chunk.first_line, chunk.byte_offset, chunk.bytes) == (first + 1, None, None)
        first += chunk.rows
        assert len(text) >= 5000 or first == 200
    assert first == 200


ROWS = pl.DataFrame(
    {
        "text": ["a", "", None, "häß", "b" * 40, "c", "d"],
        "number": [1, None, 0, 4, 5, 6, 7],
        "wide": pl.Series([2**70, None, 0, 4, 5, 6, 7], dtype=pl.Int128),
        "share": [0.5, None, 0.0, 1.5, 2.5, 3.5, 4.5],
        "when": [date(2026, 11, day) for day in range(1, 8)],
        "yes": [True, None, False, True, True, True, False],
        "tags": [["x"], [], None, ["y", "z"], ["w"], [None], ["v"]],
        "raw": [b"1", b"", None, b"4", b"5", b"6", b"7"],
    }
)


def digests(rows: pl.DataFrame, *heights: int) -> list[str]:
    """The chunks of rows that come so many at a time."""
    chunks = RowChunks("table", rows.columns, rows=3)
    start = 0
    for height in heights:
        part = rows[start : start + height]
        chunks.add(Slice(part, pl.int_range(part.height, eager=True)))
        start += height
    chunks.close()
    assert sum(chunk.rows for chunk in chunks.chunks) == rows.height
    return [chunk.sha256 for chunk in chunks.chunks]


@pytest.mark.parametrize("heights", [(7,), (1,) * 7, (2, 5), (3, 3, 1), (0, 4, 0, 3)])
def test_rows_have_the_same_chunks_however_they_come(heights: tuple[int, ...]) -> None:
    """How many rows a scan gives at a time is no property of the table."""
    assert digests(ROWS, *heights) == digests(ROWS, 7)


@pytest.mark.parametrize("column", ROWS.columns)
def test_each_value_counts(column: str) -> None:
    """Another value, a null for an empty one, or two values in the other order change a chunk."""
    first = digests(ROWS, 7)
    for taken in ([0, 1, 2, 3, 4, 5, 0], [0, 2, 1, 3, 4, 5, 6], [0, 1, 1, 3, 4, 5, 6]):
        changed = digests(ROWS.with_columns(ROWS[column].gather(taken)), 7)
        assert [one != other for one, other in zip(first, changed, strict=True)] == [
            taken[:3] != [0, 1, 2],
            False,
            taken[6] != 6,
        ]


def test_where_a_text_ends_counts() -> None:
    """The same characters in other rows are other rows."""
    one, other = (pl.DataFrame({"text": texts}) for texts in (["ab", "c"], ["a", "bc"]))
    assert digests(one, 2) != digests(other, 2)


@pytest.mark.parametrize("table", ["items", "items.parquet", "items.csv", "items.ndjson"])
def test_a_table_has_the_same_chunks_when_it_is_read_again(
    deployment: Deployment, declare: Declare, table: str
) -> None:
    """In each format; a column that nobody reads does not count."""
    rows = pl.DataFrame({"id": range(40_000), "title": ["t"] * 40_000, "other": ["o"] * 40_000})
    job = over_table(declare, table)
    store(deployment.root / table, rows)
    source = open_source(job, deployment)
    drain(source)
    first = source.chunks
    assert [(chunk.first_line, chunk.rows) for chunk in first] == [
        (1, 16_384),
        (16_385, 16_384),
        (32_769, 7_232),
    ]
    assert {chunk.columns for chunk in first} == {"id, title"}
    store(deployment.root / table, rows.with_columns(other=pl.lit("p")))
    source = open_source(job, deployment)
    drain(source)
    assert source.chunks == first


def test_a_bad_line_counts(deployment: Deployment, declare: Declare) -> None:
    """What is no row of a text table is in its chunk all the same."""
    job = over_table(declare, "items.csv")
    found: list[str] = []
    for bad in ("1,a,b,c", "1,a,b,d"):
        (deployment.root / "items.csv").write_text(f"id,title\n1,x\n{bad}\n2,y\n")
        source = open_source(job, deployment)
        drain(source)
        assert [chunk.rows for chunk in source.chunks] == [3]
        found.append(source.chunks[0].sha256)
    assert found[0] != found[1]


@pytest.fixture
def files(deployment: Deployment) -> Path:
    """A folder with two request files."""
    folder = deployment.root / "in"
    folder.mkdir()
    for name in ("a", "b"):
        text = "".join(f"{request_line(f'{name}{n}')}\n" for n in range(50))
        (folder / f"{name}.jsonl").write_text(text)
    return folder


@pytest.fixture
def taken(
    deployment: Deployment,
    declare: Declare,
    tables: TablesOf,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], list[str]]:
    """Takes the files in, in small chunks; gives the warnings."""
    assert files.is_dir()
    job = declare("batch", {"source": {"requests": "in/*.jsonl"}, "model": MODEL})
    monkeypatch.setattr(
        "acdc_dagster.requests.stage.RequestFiles",
        lambda files, model, listed: RequestFiles(files, model, 2000, listed),
    )
    return lambda: take_in(job, deployment, tables(job), "all").warnings


def test_an_unchanged_source_is_not_mentioned(taken: Callable[[], list[str]]) -> None:
    """Nor is any at the first run."""
    assert taken() == []
    assert taken() == []


def test_a_changed_file_is_named_with_its_lines(
    taken: Callable[[], list[str]], files: Path, tables: TablesOf
) -> None:
    """The first chunk that differs tells the lines, and how many differ is counted."""
    taken()
    job = Job.load(files.parent / "assets" / "batch")
    before = (
        tables(job).read("source_chunks", "all").filter(pl.col("source").str.ends_with("a.jsonl"))
    )
    wanted = before.sort("first_line").row(2, named=True)
    lines = (files / "a.jsonl").read_text().splitlines()
    lines[wanted["first_line"]] = lines[wanted["first_line"]].replace("Hello", "Hallo")
    (files / "a.jsonl").write_text("\n".join(lines) + "\n")
    last = wanted["first_line"] + wanted["rows"] - 1
    assert taken() == [
        f"{files / 'a.jsonl'} changed since this partition was last made, first in the lines "
        f"{wanted['first_line']}-{last}: 1 of its {before.height} chunks differ."
    ]
    assert taken() == []


def test_a_file_that_ends_earlier_is_named(taken: Callable[[], list[str]], files: Path) -> None:
    """Also where it ends with a chunk, so that no chunk that is left differs."""
    file = files / "a.jsonl"
    text = file.read_bytes()
    taken()
    first = chunks_of(file, 2000)[0]
    file.write_bytes(text[: first.bytes])
    assert taken() == [
        f"{file} changed since this partition was last made: it ends with line {first.rows}, and "
        f"had lines {first.rows + 1}-50 too."
    ]


def test_new_files_and_those_that_are_gone_are_named(
    taken: Callable[[], list[str]], files: Path
) -> None:
    """Three of them, and how many more."""
    taken()
    (files / "b.jsonl").rename(files / "c.jsonl")
    assert taken() == [
        f"{files / 'b.jsonl'} was there when this partition was last made, and is gone.",
        f"{files / 'c.jsonl'} is new since this partition was last made.",
    ]
    for n in range(5):
        (files / f"d{n}.jsonl").touch()
    assert taken()[2:] == [
        f"{files / 'd2.jsonl'} is new since this partition was last made.",
        "2 more files of the source changed.",
    ]


def test_a_run_that_stops_keeps_the_chunks_of_what_is_in_the_table(
    taken: Callable[[], list[str]], files: Path
) -> None:
    """Too many rejected rows leave raw_requests as it was: the next run still tells the change."""
    taken()
    file = files / "a.jsonl"
    file.write_text("no JSON\n" * 60)
    with pytest.raises(SourceError):
        taken()
    file.write_text("".join(f"{request_line(f'a{n}', 'New')}\n" for n in range(50)))
    assert str(file) in taken()[0]


def test_other_columns_in_the_prompt_are_no_change_of_the_source(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """The chunks hold what is read, so those of other columns cannot be compared."""
    store(deployment.root / "items", pl.DataFrame({"id": ["1"], "title": ["a"], "text": ["b"]}))
    for prompt in ("{{ title }}", "{{ text }}"):
        job = over_table(declare, prompt=prompt)
        assert take_in(job, deployment, tables(job), "all").warnings == []
