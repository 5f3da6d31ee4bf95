"""OpenAI-batch JSONL files as a source."""

import glob
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl
import zstandard

from acdc_dagster.errors import SourceError
from acdc_dagster.requests.batch import REQUEST, Batch
from acdc_dagster.requests.body import Refused, parse_line
from acdc_dagster.requests.line import plain_line
from acdc_dagster.requests.rejected import Rejection

_BOM = b"\xef\xbb\xbf"
# Whatever the file is called.
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Bytes of lines in a batch.
_BATCH = 8 * 2**20


@dataclass(frozen=True)
class RequestFiles:
    """OpenAI-batch files, read one after the other; gzip and zstd files are unpacked on the way.

    Every line that is not blank is one row.
    """

    files: list[Path]

    @property
    def warnings(self) -> list[str]:
        """See `Source.warnings`; a file has none."""
        return []

    def batches(self) -> Iterator[Batch]:
        """See `Source.batches`."""
        for file in self.files:
            try:
                with _open(file) as stream:
                    yield from _batches(str(file), stream)
            except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
                raise SourceError(
                    f"{file} cannot be read: {error}", "Check that it is there and whole."
                ) from error


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


def _batches(source: str, stream: BinaryIO) -> Iterator[Batch]:
    number, offset = 1, 0
    while lines := stream.readlines(_BATCH):
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
    for at, line in enumerate(lines):
        plain = plain_line(line)
        if plain is None:
            content = line.removeprefix(_BOM) if first + at == 1 else line
            content = content.strip(b"\r\n")
            if not content.strip():
                continue
            try:
                custom_id, endpoint, raw_body, body = parse_line(content)
            except Refused as refused:
                start = offset + sum(map(len, lines[:at]))
                rejections.append(
                    Rejection.of(refused, source, first + at, content, byte_offset=start)
                )
                continue
            plain = custom_id, endpoint, body.model, raw_body
        custom_id, endpoint, model, raw_body = plain
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
