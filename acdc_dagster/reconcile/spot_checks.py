"""A small sample of answers beside what was asked, for a person to read."""

import math

import numpy as np
import polars as pl

from acdc_dagster.job import Job
from acdc_dagster.requests.body import ChatBody, parse_body
from acdc_dagster.requests.message import Message
from acdc_dagster.tables import Tables

# Rows of the sample: a share, but never fewer nor more than a person can make use of.
_SHARE, _LEAST, _MOST = 0.05, 10, 200
_SEED = 0


def spot_check(job: Job, tables: Tables, partition: str) -> pl.DataFrame:
    """Fill `spot_checks` with 5 % of the partition's outputs, at least 10 and at most 200.

    The sample is seeded: while the rows of a partition are the same, so is the sample, and two runs
    can be read side by side.

    Raises:
        TableError: The storage refused; run the partition again.
    """
    outputs = tables.scan("outputs", partition)
    columns = ["custom_id", "line", "status", "error_class", "text", "prompt_version"]
    ids = tables.collect(outputs.select("custom_id", "line")).sort("line", "custom_id")
    size = min(ids.height, _MOST, max(math.ceil(_SHARE * ids.height), _LEAST))
    places = np.random.default_rng(_SEED).choice(ids.height, size, replace=False)
    chosen = ids["custom_id"].gather(np.sort(places))
    rows = tables.collect(
        outputs.filter(pl.col("custom_id").is_in(chosen.implode())).select(columns)
    )
    # A row that was split is shown with its first chunk.
    split = job.declared.too_long.split is not None
    asked_as = rows.select(
        "custom_id", asked=pl.format("{}:0001", "custom_id") if split else pl.col("custom_id")
    )
    bodies = tables.collect(
        tables.scan("raw_requests", partition)
        .filter(pl.col("custom_id").is_in(asked_as["asked"].implode()))
        .select(pl.col("custom_id").alias("asked"), "endpoint", "body")
    )
    prompts = [asked_as_text(*asked) for asked in bodies.select("endpoint", "body").iter_rows()]
    inputs = bodies.select("asked", pl.Series("input", prompts, dtype=pl.String))
    sample = (
        rows.join(asked_as, on="custom_id")
        .join(inputs, on="asked", how="left")
        .sort("line", "custom_id")
    )
    tables.replace("spot_checks", partition, sample)
    return sample


def asked_as_text(endpoint: str, body: str) -> str:
    """What a request asks: its prompt, or its messages with their roles and marks for images."""
    request = parse_body(endpoint, body)
    if isinstance(request, ChatBody):
        return "\n\n".join(f"{message.role}: {_content(message)}" for message in request.messages)
    text = request.text
    return text if isinstance(text, str) else f"token ids: {', '.join(map(str, text))}"


def _content(message: Message) -> str:
    return "\n".join([*["[image]"] * len(message.image_urls()), message.text()])
