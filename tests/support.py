"""What tests share beside their fixtures."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import write_deltalake

from acdc_dagster.job import Job
from acdc_dagster.requests.batch import Source
from acdc_dagster.requests.intake import Intake, RepeatedIdsError
from acdc_dagster.requests.jsonl import RequestFiles
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.tables import row_schema

REPOSITORY = Path(__file__).parents[1]
MODEL = "smollm2-135m-instruct"

# Writes a job's folder and loads it: (name, attributes, **files by name, "." written "_dot_").
Declare = Callable[..., Job]


def request_line(custom_id: object = "a", content: object = "Hello", **body: Any) -> str:
    """One valid line of an OpenAI-batch file, or one that is wrong in what is given."""
    return json.dumps(
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": MODEL,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 8,
                "temperature": 0,
                **body,
            },
        }
    )


def write_table(place: Path, rows: list[dict[str, Any]]) -> None:
    """A Delta table with these rows."""
    write_deltalake(str(place), pl.DataFrame(rows, infer_schema_length=None), mode="overwrite")


@dataclass(frozen=True)
class Taken:
    """All that an intake gives for a source."""

    input_rows: int
    requests: pl.DataFrame
    rejections: list[Rejection]
    warnings: list[str]


def take_source(source: Source, model: str | None) -> Taken:
    """Take a source in, as the first stage does, without tables."""
    intake = Intake(source, model)
    try:
        frames = list(intake.frames())
    except RepeatedIdsError:
        frames = list(intake.frames())
    requests = pl.concat([pl.DataFrame(schema=row_schema("raw_requests")), *frames])
    assert intake.requests == requests.height
    return Taken(intake.input_rows, requests, intake.rejections, intake.warnings)


def take_files(files: list[Path], model: str | None) -> Taken:
    """Take OpenAI-batch files in."""
    return take_source(RequestFiles(files), model)
