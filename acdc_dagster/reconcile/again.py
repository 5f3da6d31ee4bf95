"""How a request is asked again: its body changed for the failure, rendered and sorted anew."""

import json
from typing import Any

import polars as pl

from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.prefix.sorted_rows import sorted_rows
from acdc_dagster.prefix.stage import READ, tokenised
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.tables import Tables

_STRICTER = (
    "Answer with one JSON object and nothing else. It must be complete and valid against this JSON "
    "schema: "
)


def asked_again(
    job: Job, model: Model, tables: Tables, partition: str, wanted: pl.DataFrame
) -> pl.DataFrame:
    """The prompts of another attempt, in prefix order.

    Args:
        job: The job.
        model: The model that answers.
        tables: The job's tables; `raw_requests` and `request_map` are read.
        partition: The partition key.
        wanted: With the columns `request_hash` and `error_class`.

    Returns:
        The columns of `sorted_requests`, `request_hash` being that of the original, and
        `error_class`. A request that leaves no room for what is added to it is not there.
    """
    raw = tables.collect(
        tables.scan("raw_requests", partition)
        .join(
            tables.scan("request_map", partition)
            .select("custom_id", "request_hash")
            .join(wanted.lazy().select("request_hash", "error_class"), on="request_hash")
            .unique("request_hash", keep="any"),
            on="custom_id",
        )
        .sort("line", "custom_id")
    )
    bodies = [
        _changed(job, body, failure)
        for body, failure in raw.select("body", "error_class").iter_rows()
    ]
    if not bodies:  # raw_requests changed since; stage 5 says so
        return pl.DataFrame()
    mapped, asked = _sorted(model, partition, raw.with_columns(pl.Series("body", bodies)))
    originals = mapped.rename({"request_hash": "asked"}).join(
        raw.select("custom_id", "request_hash", "error_class"), on="custom_id"
    )
    # Two requests can be the same by now; each gets its answer.
    rows = asked.rename({"request_hash": "asked"}).join(
        originals.select("asked", "request_hash", "error_class"), on="asked"
    )
    again = pl.col("position") == pl.col("position").shift(1)
    return (
        rows.sort("position", "request_hash")
        .with_columns(lcp=pl.when(again).then("prompt_tokens").otherwise("lcp"))
        .with_columns(position=pl.int_range(pl.len()))
        .drop("asked")
    )


def _sorted(model: Model, partition: str, raw: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of `request_map` and of `sorted_requests` for these rows of `raw_requests`."""
    sorter, mapped, _ = tokenised(
        ModelTokenizer(model.path), model, partition, lambda: raw.iter_slices(READ)
    )
    frames: list[pl.DataFrame] = []
    first = 0
    for frame in sorter.sorted():
        frames.append(sorted_rows(frame, first, sorter.images))
        first += frames[-1].height
    return pl.concat(mapped.frames()), pl.concat(frames) if frames else pl.DataFrame()


def _changed(job: Job, body: str, failure: str) -> str:
    """The body to ask again with; as it was where nothing is to change."""
    cap = job.declared.retries.truncated
    if failure == "truncated" and cap is not None:
        request: dict[str, Any] = json.loads(body)
        both = "max_completion_tokens" in request
        request["max_completion_tokens" if both else "max_tokens"] = cap.max_tokens
        return json.dumps(request, ensure_ascii=False)
    if failure == "parse":
        return _stricter(json.loads(body), job.answer_schema)
    return body


def _stricter(request: dict[str, Any], schema: object) -> str:
    """With the schema and an instruction at the end, so that the prompt's prefix stays shared.

    A job with a schema made its bodies from a prompt: chats whose contents are text.
    """
    told = _STRICTER + json.dumps(schema, ensure_ascii=False)
    messages: list[dict[str, Any]] = request["messages"]
    last = next((one for one in reversed(messages) if one["role"] != "assistant"), messages[-1])
    last["content"] = f"{last['content']}\n\n{told}"
    return json.dumps(request, ensure_ascii=False)
