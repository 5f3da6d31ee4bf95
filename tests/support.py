"""What tests share beside their fixtures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import write_deltalake

from acdc_dagster.job import Job

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
