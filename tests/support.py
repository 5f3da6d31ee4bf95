"""What tests share beside their fixtures."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import write_deltalake

from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.prefix.sorter import Sorter, hex_of
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.batch import REQUEST, Source
from acdc_dagster.requests.files.jsonl import RequestFiles
from acdc_dagster.requests.intake import Intake, RepeatedIdsError
from acdc_dagster.requests.rejected import Rejection

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
    requests = pl.concat([pl.DataFrame(schema={**REQUEST, "input_rows": pl.Int64}), *frames])
    assert intake.requests == requests.height
    return Taken(intake.input_rows, requests, intake.rejections, intake.warnings)


def take_files(files: list[Path], model: str | None) -> Taken:
    """Take batch files in."""
    return take_source(RequestFiles(files, model or MODEL), model)


def sorted_prompts(
    model: Model, endpoint: str, bodies: list[dict[str, Any]], memory: int = 2**30
) -> tuple[Sorter, list[list[int] | None]]:
    """What stage 2 makes of bodies, without tables.

    Returns:
        The sorter when it is done, and each body's token ids; None where it was refused.
    """
    sorter = Sorter(ModelTokenizer(model.path), ChatTemplate(model.path), model, {}, "p", memory)
    raw = pl.DataFrame(
        {
            "custom_id": [str(at) for at in range(len(bodies))],
            "endpoint": [endpoint] * len(bodies),
            "body": [json.dumps(body) for body in bodies],
            "source": ["file"] * len(bodies),
            "line": list(range(1, len(bodies) + 1)),
            "input_rows": [1] * len(bodies),
        },
        schema_overrides={"custom_id": pl.String, "body": pl.String},
    )
    mapped = pl.concat([sorter.add(part) for part in raw.iter_slices(1000)])
    ids = {
        request_hash: frame.tokens[at].tolist()
        for frame in sorter.sorted()
        for at, request_hash in enumerate(hex_of(frame.hashes))
    }
    found = dict(mapped.select("custom_id", "request_hash").iter_rows())
    return sorter, [ids.get(found.get(str(at), "")) for at in range(len(bodies))]
