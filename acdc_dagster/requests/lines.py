"""Lines of text files, some at a time: what CSV and NDJSON tables are read from."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import polars as pl
from polars.exceptions import ComputeError

from acdc_dagster.requests.packed import check_encoding, open_unpacked

LINES = 16_384
_BOM = "\ufeff"


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of one file, without their ends.

    Attributes:
        file: Path or URI.
        first: The number of the first of them, from 1 as an editor counts.
        text: Their text; null where a line is not UTF-8.
        not_utf8: The bytes of those, by their place in `text`.
    """

    file: str
    first: int
    text: pl.Series
    not_utf8: dict[int, bytes] = field(default_factory=dict[int, bytes])


def local_files(place: str) -> list[Path]:
    """The files of this machine at a path or glob, sorted; a name is itself before a pattern."""
    if "://" in place:
        return []
    if Path(place).exists():
        return [Path(place)]
    return sorted(map(Path, glob.glob(place, recursive=True)))  # noqa: PTH207 - is absolute


def read_lines(place: str, storage_options: dict[str, str]) -> Iterator[Lines]:
    """All lines of a file, or of the files of a glob one after the other; gzip is unpacked.

    polars reads them, and stops at the first byte that is not UTF-8; from there on a file of this
    machine is read in Python, which can tell the line.

    Args:
        place: Path, glob or URI.
        storage_options: For a URI.

    Raises:
        PolarsError: A file cannot be unpacked, or a remote one is not UTF-8.
        OSError: There is no such file, or it cannot be read.
        SourceError: A file of this machine is in UTF-16.
    """
    if "://" in place:
        yield from _scanned(place, storage_options, is_pattern=True)
        return
    files = local_files(place)
    if not files:
        raise FileNotFoundError(f"no such file: {place}")
    for file in files:
        done = 0
        try:
            for lines in _scanned(str(file), {}, is_pattern=False):
                yield lines
                done += lines.text.len()
        except ComputeError as error:
            if "utf" not in str(error).lower():
                raise
            yield from _decoded(file, done)


def read_remote_lines(uri: str, storage_options: dict[str, str]) -> Iterator[Lines]:
    """All lines of the one file of that URI; gzip and zstd are unpacked.

    Raises:
        PolarsError: It is not UTF-8.
        OSError: There is no such file, or it cannot be read or unpacked.
    """
    return _scanned(uri, storage_options, is_pattern=False)


def _scanned(place: str, storage_options: dict[str, str], *, is_pattern: bool) -> Iterator[Lines]:
    remote = "://" in place
    scan = pl.scan_lines(
        place,
        glob=is_pattern,
        include_file_paths="file",
        storage_options=storage_options if remote else None,
    )
    first: dict[str, int] = {}
    for frame in scan.collect_batches(chunk_size=LINES):
        for part in frame.partition_by("file", maintain_order=True):
            file = str(part["file"][0])
            number = first.setdefault(file, 1)
            first[file] += part.height
            text = part["line"]
            if number == 1:
                text = _without_mark(text)
            yield Lines(file, number, text)


def _decoded(file: Path, skip: int) -> Iterator[Lines]:
    with open_unpacked(file) as stream:
        rest = islice(stream, skip, None)
        while block := [
            line.removesuffix(b"\n").removesuffix(b"\r") for line in islice(rest, LINES)
        ]:
            if skip == 0:
                check_encoding(str(file), block[0])
            texts: list[str | None] = []
            not_utf8: dict[int, bytes] = {}
            for place, line in enumerate(block):
                try:
                    texts.append(line.decode("utf-8"))
                except UnicodeDecodeError:
                    texts.append(None)
                    not_utf8[place] = line
            text = pl.Series(texts, dtype=pl.String)
            yield Lines(str(file), skip + 1, _without_mark(text) if skip == 0 else text, not_utf8)
            skip += len(block)


def _without_mark(text: pl.Series) -> pl.Series:
    """The first lines of a file without its byte order mark."""
    if not str(text[0] or "").startswith(_BOM):
        return text
    return pl.concat([text[:1].str.strip_prefix(_BOM), text[1:]])
