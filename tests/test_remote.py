"""Request files named by a URI: which are found, and how they are read."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from support import MODEL, Declare, request_line, take_source

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.requests.files.jsonl import RequestFiles, request_files
from acdc_dagster.requests.files.remote import remote_files
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

NAMES = [
    "b.jsonl",
    "a.jsonl",
    "a.txt",
    "d 1/c.jsonl",
    "d 1/deep/e.jsonl.gz",
    "m*n.jsonl",
    "mon.jsonl",
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder with files of these names, each with its name as the only custom_id."""
    for name in NAMES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(request_line(name))
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.jsonl", ["a.jsonl"]),
        ("?.jsonl", ["a.jsonl", "b.jsonl"]),
        ("[!b].*", ["a.jsonl", "a.txt"]),
        ("*/*.jsonl", ["d 1/c.jsonl"]),
        ("d 1/**/*", ["d 1/c.jsonl", "d 1/deep/e.jsonl.gz"]),
        ("**/*.jsonl", ["a.jsonl", "b.jsonl", "d 1/c.jsonl", "m*n.jsonl", "mon.jsonl"]),
        ("m*n.jsonl", ["m*n.jsonl"]),
        ("m[*]n.jsonl", ["m*n.jsonl"]),
        ("m?n.jsonl", ["m*n.jsonl", "mon.jsonl"]),
        ("d 1", []),
        ("none.jsonl", []),
        ("none/*.jsonl", []),
    ],
)
def test_a_pattern_means_what_it_means_for_paths(
    store: Path, pattern: str, names: list[str]
) -> None:
    """Wildcards stop at a slash, a name is itself first, and files come in the order of names."""
    found = remote_files(f"{store.as_uri()}/{pattern}", {})
    assert [file.uri for file in found] == [f"{store.as_uri()}/{name}" for name in names]
    taken = take_source(RequestFiles(found, MODEL), MODEL)
    assert taken.requests["custom_id"].to_list() == names


def test_a_partition_key_is_no_pattern(store: Path) -> None:
    """A key with a wildcard in it names its own file and no other."""
    found = request_files(f"{store.as_uri()}/{{partition}}.jsonl", "m*n", Path(), {})
    assert [str(file) for file in found] == [f"{store.as_uri()}/m*n.jsonl"]


LINES = f"\ufeff{request_line('a')}\n\n \t\r\n{request_line('b')}\r\nnot JSON\r\n".encode()


@pytest.mark.parametrize(
    "content",
    [LINES, gzip.compress(LINES), zstandard.compress(LINES)],
    ids=["plain", "gzip", "zstd"],
)
def test_rows_and_lines_are_those_of_the_file(tmp_path: Path, content: bytes) -> None:
    """What a file is called says nothing; its lines are numbered as an editor does."""
    file = tmp_path / "requests.txt"
    file.write_bytes(content)
    taken = take_source(RequestFiles(remote_files(file.as_uri(), {}), MODEL), MODEL)
    assert taken.requests.select("custom_id", "line", "source").rows() == [
        ("a", 1, file.as_uri()),
        ("b", 4, file.as_uri()),
    ]
    (rejection,) = taken.rejections
    assert (rejection.line, rejection.code) == (5, "invalid_json_line")
    assert rejection.original == b"not JSON"


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(LINES * 1000, mtime=0)[:-20],
        zstandard.compress(LINES * 1000)[:-5],
        request_line("a").encode() + b"\n\xff\n",
    ],
    ids=["truncated gzip", "truncated zstd", "not UTF-8"],
)
def test_a_broken_file_stops_the_run(tmp_path: Path, content: bytes) -> None:
    """Half of a file is never taken for all of it."""
    file = tmp_path / "requests.jsonl"
    file.write_bytes(content)
    files = RequestFiles(remote_files(file.as_uri(), {}), MODEL)
    with pytest.raises(SourceError) as caught:
        take_source(files, MODEL)
    assert file.as_uri() in caught.value.problem


def test_a_job_reads_a_uri(
    deployment: Deployment, declare: Declare, tables: Callable[[Job], Tables], store: Path
) -> None:
    """`source.requests` may be a URI, and a table is written with its rows."""
    uri = store.as_uri()
    job = declare("files", {"source": {"requests": f"{uri}/?.jsonl"}, "model": MODEL})
    assert take_in(job, deployment, tables(job), "all").input_rows == 2
    rows = tables(job).read("raw_requests").sort("source")
    assert rows["source"].to_list() == [f"{uri}/a.jsonl", f"{uri}/b.jsonl"]


@pytest.mark.parametrize("place", ["nowhere://bucket/x.jsonl", "s3:///x.jsonl"])
def test_a_store_that_is_none_is_a_fault_of_the_source(place: str) -> None:
    """What cannot be listed is named with the reason and a remedy."""
    with pytest.raises(SourceError) as caught:
        request_files(place, "", Path(), {})
    assert place in caught.value.problem
    assert "\x1b" not in caught.value.problem
    assert "source.requests" in caught.value.remedy


def test_no_file_at_a_uri_is_a_fault_of_the_source(store: Path) -> None:
    """A pattern that fits nothing stops the stage, naming it."""
    place = f"{store.as_uri()}/none/*.jsonl"
    with pytest.raises(SourceError, match="No request file"):
        request_files(place, "", Path(), {})
