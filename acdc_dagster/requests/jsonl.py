"""Batch JSONL files as a source: OpenAI's, and those of other providers."""

import glob
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl
import zstandard
from polars.exceptions import PolarsError

from acdc_dagster.errors import SourceError
from acdc_dagster.requests.batch import REQUEST, Batch
from acdc_dagster.requests.body import Refused
from acdc_dagster.requests.foreign import LineReader
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.requests.remote import RemoteFile, remote_files

_BOM = b"\xef\xbb\xbf"
# Whatever the file is called.
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Bytes of lines in a batch.
_BATCH = 32 * 2**20

_Row = tuple[str, str, str, str, str, int]


@dataclass(frozen=True)
class RequestFiles:
    """Batch files, read one after the other; gzip and zstd files are unpacked on the way.

    Every line that is not blank is one row.

    Attributes:
        files: In this order.
        model: The model for requests of formats other than OpenAI's.
    """

    files: Sequence[Path | RemoteFile]
    model: str

    @property
    def warnings(self) -> list[str]:
        """See `Source.warnings`; a file has none."""
        return []

    def batches(self) -> Iterator[Batch]:
        """See `Source.batches`."""
        for file in self.files:
            reader = LineReader(self.model)
            try:
                if isinstance(file, RemoteFile):
                    yield from _remote_batches(file, reader)
                    continue
                with _open(file) as stream:
                    yield from _batches(str(file), stream, reader)
            except (OSError, EOFError, PolarsError, zlib.error, zstandard.ZstdError) as error:
                raise SourceError(
                    f"{file} cannot be read: {error}", "Check that it is there and whole."
                ) from error


def request_files(
    pattern: str, partition: str, root: Path, storage_options: dict[str, str]
) -> Sequence[Path | RemoteFile]:
    """The files that `pattern`, a URI or relative to `root`, names for one partition, sorted.

    Raises:
        SourceError: There is none, or the store cannot be listed.
    """
    place = pattern.replace("{partition}", glob.escape(partition))
    remote = "://" in place
    found = remote_files(place, storage_options) if remote else _local_files(place, root)
    if not found:
        raise SourceError(
            f"No request file is at {place if remote else root / place}.",
            "Correct source.requests in the job's defs.yaml, or put the file there.",
        )
    return found


def _local_files(place: str, root: Path) -> list[Path]:
    if (root / place).is_file():  # a name is itself before it is a pattern
        return [root / place]
    names = glob.glob(place, root_dir=root, recursive=True)  # noqa: PTH207 - may be absolute
    return sorted(root / name for name in names)


def _batches(source: str, stream: BinaryIO, reader: LineReader) -> Iterator[Batch]:
    number, offset = 1, 0
    while lines := stream.readlines(_BATCH):
        yield _batch(source, lines, number, offset, reader)
        number += len(lines)
        offset += sum(map(len, lines))


def _remote_batches(file: RemoteFile, reader: LineReader) -> Iterator[Batch]:
    for lines in file.lines():
        texts = [text.encode() for text in lines.text]
        yield _batch(file.uri, texts, lines.first, None, reader)


def _batch(
    source: str, lines: list[bytes], first: int, offset: int | None, reader: LineReader
) -> Batch:
    rows: list[_Row] = []
    places: list[int] = []
    rejections: list[Rejection] = []
    for at, line in enumerate(lines):
        request = reader.plain(line)
        if request is None:
            content = line.removeprefix(_BOM) if first + at == 1 else line
            content = content.strip(b"\r\n")
            if not content.strip():
                continue
            try:
                request = reader.read(content)
            except Refused as refused:
                start = None if offset is None else offset + sum(map(len, lines[:at]))
                rejections.append(
                    Rejection.of(refused, source, first + at, content, byte_offset=start)
                )
                continue
        rows.append((*request, source, first + at))
        places.append(at)
    requests = pl.DataFrame(rows, schema=REQUEST, orient="row")
    return Batch(requests, lambda row: lines[places[row]].rstrip(b"\r\n"), rejections)


def _open(file: Path) -> BinaryIO:
    stream = file.open("rb")
    start = stream.read(len(_ZSTD))
    stream.seek(0)
    if file.suffix == ".gz" or start.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=stream))
    if file.suffix == ".zst" or start == _ZSTD:
        reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
        return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", reader), 2**20))
    return stream
