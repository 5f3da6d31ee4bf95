"""Batch JSONL files as a source: OpenAI's, and those of other providers."""

import glob
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

import numpy as np
import polars as pl
import zstandard
from polars.exceptions import PolarsError

from acdc_dagster.errors import SourceError
from acdc_dagster.requests.batch import REQUEST, Batch
from acdc_dagster.requests.files.foreign import LineReader
from acdc_dagster.requests.files.remote import RemoteFile, remote_files
from acdc_dagster.requests.packed import check_encoding, open_unpacked
from acdc_dagster.requests.refused import Refused
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.requests.source_chunks import CHUNK_BYTES, LineChunks, SourceChunk

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class RequestFiles:
    """Batch files, read one after the other; gzip and zstd files are unpacked on the way.

    Every line that is not blank is one row.

    Args:
        files: Read in this order.
        model: The model for requests of formats other than OpenAI's.
        batch_bytes: Bytes of lines in a batch, and in a chunk.
        listed: Lists the files anew, to see that none has come or gone; None if they are named one
            by one, or are in an object store.
    """

    files: Sequence[Path | RemoteFile]
    model: str
    batch_bytes: int = CHUNK_BYTES
    listed: Callable[[], Sequence[Path]] | None = None
    chunks: list[SourceChunk] = field(
        default_factory=list[SourceChunk], init=False, repr=False, compare=False
    )
    _seen: dict[Path, tuple[int, int]] = field(
        default_factory=dict[Path, tuple[int, int]], init=False, repr=False, compare=False
    )

    @property
    def warnings(self) -> list[str]:
        """See `Source.warnings`; a file has none."""
        return []

    def batches(self) -> Iterator[Batch]:
        """See `Source.batches`.

        Raises:
            SourceError: A file cannot be read; or one was changed, or has come, before the last was
                read.
        """
        self.chunks.clear()
        self._check_local()
        for file in self.files:
            reader = LineReader(self.model)
            try:
                if isinstance(file, RemoteFile):
                    yield from self._remote_batches(file, reader)
                    continue
                with open_unpacked(file) as stream:
                    yield from self._local_batches(_name(file), stream, reader)
                self._check(file)
            except (OSError, EOFError, PolarsError, zlib.error, zstandard.ZstdError) as error:
                raise _unreadable(file, error) from error
        self._check_local()

    def _local_batches(self, source: str, stream: BinaryIO, reader: LineReader) -> Iterator[Batch]:
        number, offset = 1, 0
        while block := stream.read(self.batch_bytes):
            if number == 1:
                check_encoding(source, block)
            rest = b"" if block.endswith(b"\n") else stream.readline()
            digest = hashlib.sha256(block)
            digest.update(rest)
            lines = block.split(b"\n")
            lines[-1] += rest.removesuffix(b"\n")
            if not lines[-1] and not rest:  # what follows the end of the last line
                lines.pop()
            size = len(block) + len(rest)
            self.chunks.append(
                SourceChunk(source, number, len(lines), offset, size, digest.hexdigest(), None)
            )
            begin = offset
            if number == 1 and lines[0].startswith(_BOM):
                lines[0] = lines[0].removeprefix(_BOM)
                begin = len(_BOM)
            yield _batch(source, lines, number, begin, reader)
            number += len(lines)
            offset += size
        if number == 1:
            empty = hashlib.sha256().hexdigest()
            self.chunks.append(SourceChunk(source, 1, 0, 0, 0, empty, None))

    def _remote_batches(self, file: RemoteFile, reader: LineReader) -> Iterator[Batch]:
        chunks = LineChunks(file.uri, self.batch_bytes)
        for lines in file.lines():
            a_line = int(lines.text.estimated_size()) // lines.text.len() + 1
            step = self.batch_bytes // a_line + 1
            for start in range(0, lines.text.len(), step):
                some = [text.encode() for text in lines.text[start : start + step]]
                self.chunks.extend(chunks.add(some))
                yield _batch(file.uri, some, lines.first + start, None, reader)
        self.chunks.extend(chunks.rest())

    def _check_local(self) -> None:
        """See that all files of this machine are what they were, and that there are no others."""
        for file in self.files:
            if isinstance(file, Path):
                try:
                    self._check(file)
                except OSError as error:
                    raise _unreadable(file, error) from error
        known = {file for file in self.files if isinstance(file, Path)}
        now: Sequence[Path] = [] if self.listed is None else self.listed()
        for file in now:
            if file in known:
                continue
            raise SourceError(
                f"{_name(file)} came while the request files were read.",
                "Run the partition again when nobody writes to the files; nothing was written.",
            )

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


def request_files(
    pattern: str, partition: str, root: Path, storage_options: dict[str, str]
) -> Sequence[Path | RemoteFile]:
    """The files that `pattern`, a URI or relative to `root`, names for one partition, sorted.

    Raises:
        SourceError: There is none, or the store cannot be listed.
    """
    place = _of_partition(pattern, partition)
    remote = "://" in place
    found: Sequence[Path | RemoteFile] = (
        remote_files(place, storage_options) if remote else local_files(pattern, partition, root)
    )
    if not found:
        raise SourceError(
            f"No request file is at {place if remote else root / place}.",
            "Correct source.requests in the job's defs.yaml, or put the file there.",
        )
    return found


def local_files(pattern: str, partition: str, root: Path) -> list[Path]:
    """Those of `request_files` that a pattern relative to `root` names now; may be none."""
    place = _of_partition(pattern, partition)
    # A name is itself before it is a pattern; os.path takes one that no file can have too.
    if os.path.isfile(root / place):  # noqa: PTH113
        return [root / place]
    names = glob.glob(place, root_dir=root, recursive=True)  # noqa: PTH207 - may be absolute
    return sorted(root / name for name in names)


def _of_partition(pattern: str, partition: str) -> str:
    return pattern.replace("{partition}", glob.escape(partition))


def _unreadable(file: Path | RemoteFile, error: Exception) -> SourceError:
    return SourceError(
        f"{_name(file)} cannot be read: {error}", "Check that it is there and whole."
    )


def _name(file: Path | RemoteFile) -> str:
    """The file's path as text, whatever bytes it has; or its URI."""
    if isinstance(file, RemoteFile):
        return file.uri
    return os.fsencode(file).decode(errors="backslashreplace")


def _batch(
    source: str, lines: list[bytes], first: int, offset: int | None, reader: LineReader
) -> Batch:
    ids: list[str] = []
    endpoints: list[str] = []
    models: list[str] = []
    bodies: list[str] = []
    places: list[int] = []
    rejections: list[Rejection] = []
    ends = np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)) + 1)

    def content_of(at: int) -> tuple[bytes, int | None]:
        """A line without its end, and its byte offset if that can be told."""
        begin = None if offset is None else offset + int(ends[at]) - len(lines[at]) - 1
        return lines[at].removesuffix(b"\r"), begin

    for at, line in enumerate(lines):
        if not line or line.isspace():
            continue
        try:
            custom_id, endpoint, model, raw_body = reader.read(line)
        except Refused as refused:
            content, start = content_of(at)
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

    return Batch(requests, lambda row: content_of(places[row]), rejections)
