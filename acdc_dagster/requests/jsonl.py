"""OpenAI-batch JSONL files as a source."""

import glob
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from acdc_dagster.errors import SourceError
from acdc_dagster.requests.body import Refused, parse_line
from acdc_dagster.requests.intake import Intake, Taken

_BOM = b"\xef\xbb\xbf"


def request_files(pattern: str, partition: str) -> list[Path]:
    """The files that `pattern` names for one partition, sorted.

    Raises:
        SourceError: There is none.
    """
    place = pattern.replace("{partition}", glob.escape(partition))
    found = sorted(Path(name) for name in glob.glob(place, recursive=True))  # noqa: PTH207
    if not found:
        raise SourceError(
            f"No request file is at {place}.",
            "Correct source.requests in the job's defs.yaml, or put the file there.",
        )
    return found


def take_files(files: list[Path], model: str | None) -> Taken:
    """Read OpenAI-batch files; every line that is not blank is one input row.

    Args:
        files: Read one after the other, line by line; `.gz` files are unpacked on the way.
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
                intake.accept(custom_id, endpoint, raw_body, body, str(file), number)
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
    except (OSError, EOFError) as error:
        raise SourceError(
            f"{file} cannot be read: {error}", "Check that it is there and whole."
        ) from error


def _open(file: Path) -> BinaryIO:
    if file.suffix == ".gz":
        return cast("BinaryIO", gzip.open(file, "rb"))
    return file.open("rb")
