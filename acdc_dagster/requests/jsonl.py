"""OpenAI-batch JSONL files as a source."""

import glob
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from acdc_dagster.errors import SourceError
from acdc_dagster.requests.body import Refused, parse_line
from acdc_dagster.requests.intake import Intake, Taken

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"  # whatever the file is called


def request_files(pattern: str, partition: str, root: Path) -> list[Path]:
    """The files that `pattern`, relative to `root`, names for one partition, sorted.

    Raises:
        SourceError: There is none.
    """
    place = pattern.replace("{partition}", glob.escape(partition))
    if (root / place).is_file():  # a name is itself before it is a pattern
        return [root / place]
    names = glob.glob(place, root_dir=root, recursive=True)  # noqa: PTH207 - may be absolute
    found = sorted(root / name for name in names)
    if not found:
        raise SourceError(
            f"No request file is at {root / place}.",
            "Correct source.requests in the job's defs.yaml, or put the file there.",
        )
    return found


def take_files(files: list[Path], model: str | None) -> Taken:
    """Read OpenAI-batch files; every line that is not blank is one input row.

    Args:
        files: Read one after the other, line by line; gzip files are unpacked on the way.
        model: The model that each request must name; the first one's if None.

    Raises:
        SourceError: A file cannot be read or unpacked.
    """
    intake = Intake(model)
    for file in files:
        for number, line in _lines(file):
            try:
                custom_id, endpoint, raw_body, body = parse_line(line)
            except Refused as refused:
                intake.refuse(refused, str(file), number, line)
            else:
                intake.accept(custom_id, endpoint, raw_body, body, str(file), number, line)
    return intake.settle()


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, without their ends, numbered from 1 as an editor does."""
    try:
        with _open(file) as stream:
            for number, line in enumerate(stream, start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                content = content.rstrip(b"\r\n")
                if content.strip():
                    yield number, content
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(
            f"{file} cannot be read: {error}", "Check that it is there and whole."
        ) from error


def _open(file: Path) -> BinaryIO:
    stream = file.open("rb")
    packed = file.suffix == ".gz" or stream.read(len(_GZIP)) == _GZIP
    stream.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=stream)) if packed else stream
