"""OpenAI-batch JSONL files as a source."""

import glob
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

import numpy as np
import polars as pl
import zstandard

from acdc_dagster.errors import SourceError
from acdc_dagster.requests.batch import REQUEST, Batch
from acdc_dagster.requests.body import Refused, parse_line
from acdc_dagster.requests.packed import open_unpacked
from acdc_dagster.requests.rejected import Rejection

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class RequestFiles:
    """OpenAI-batch files, read one after the other; gzip and zstd files are unpacked on the way.

    Every line that is not blank is one row.

    Args:
        files: Read in this order.
        batch_bytes: Bytes of lines in a batch.
    """

    files: list[Path]
    batch_bytes: int = 8 * 2**20
    _seen: dict[Path, tuple[int, int]] = field(
        default_factory=dict[Path, tuple[int, int]], init=False, repr=False, compare=False
    )

    @property
    def warnings(self) -> list[str]:
        """See `Source.warnings`; a file has none."""
        return []

    def batches(self) -> Iterator[Batch]:
        """See `Source.batches`."""
        for file in self.files:
            try:
                self._check(file)
                with open_unpacked(file) as stream:
                    yield from _batches(_name(file), stream, self.batch_bytes)
                self._check(file)
            except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
                raise SourceError(
                    f"{_name(file)} cannot be read: {error}", "Check that it is there and whole."
                ) from error

    def _check(self, file: Path) -> None:
        """See that the file is one, and is what it was when it was first seen."""
        stat = file.stat()
        if not S_ISREG(stat.st_mode):
            raise SourceError(
                f"{_name(file)} cannot be read: it is no regular file.",
                "Name a file, not a folder or a pipe: it may have to be read twice.",
            )
        stamp = stat.st_size, stat.st_mtime_ns
        if self._seen.setdefault(file, stamp) != stamp:
            raise SourceError(
                f"{_name(file)} was changed while it was read.",
                "Run the partition again when nobody writes to the file; nothing was written.",
            )


def request_files(pattern: str, partition: str, root: Path) -> RequestFiles:
    """The files that `pattern`, relative to `root`, names for one partition, sorted.

    Raises:
        SourceError: There is none.
    """
    place = pattern.replace("{partition}", glob.escape(partition))
    if (root / place).is_file():  # a name is itself before it is a pattern
        return RequestFiles([root / place])
    names = glob.glob(place, root_dir=root, recursive=True)  # noqa: PTH207 - may be absolute
    found = sorted(root / name for name in names)
    if not found:
        raise SourceError(
            f"No request file is at {root / place}.",
            "Correct source.requests in the job's defs.yaml, or put the file there.",
        )
    return RequestFiles(found)


def _name(file: Path) -> str:
    """The file's path as text, whatever bytes it has."""
    return os.fsencode(file).decode(errors="backslashreplace")


def _batches(source: str, stream: BinaryIO, size: int) -> Iterator[Batch]:
    number, offset = 1, 0
    while lines := stream.readlines(size):
        if number == 1 and lines[0].startswith(_BOM):
            lines[0] = lines[0].removeprefix(_BOM)
            offset = len(_BOM)
        yield _batch(source, lines, number, offset)
        number += len(lines)
        offset += sum(map(len, lines))


def _batch(source: str, lines: list[bytes], first: int, offset: int) -> Batch:
    ids: list[str] = []
    endpoints: list[str] = []
    models: list[str] = []
    bodies: list[str] = []
    places: list[int] = []
    rejections: list[Rejection] = []
    ends = offset + np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
    for at, line in enumerate(lines):
        if not line or line.isspace():
            continue
        try:
            custom_id, endpoint, model, raw_body = parse_line(line)
        except Refused as refused:
            start = int(ends[at]) - len(line)
            content = _content(line)
            rejections.append(Rejection.of(refused, source, first + at, content, byte_offset=start))
            continue
        ids.append(custom_id)
        endpoints.append(endpoint)
        models.append(model)
        bodies.append(raw_body)
        places.append(at)
    requests = pl.DataFrame(
        {
            "custom_id": ids,
            "endpoint": endpoints,
            "model": models,
            "body": bodies,
            "source": pl.repeat(source, len(ids), eager=True, dtype=pl.String),
            "line": pl.Series(places, dtype=pl.Int64) + first,
        },
        schema=REQUEST,
    )

    def original(row: int) -> tuple[bytes, int]:
        at = places[row]
        return _content(lines[at]), int(ends[at]) - len(lines[at])

    return Batch(requests, original, rejections)


def _content(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")
