"""Working with dead letters: list them, write them to a file, queue them again."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import polars as pl

from acdc_dagster.errors import SourceError
from acdc_dagster.failures import FAILURES, counts_for
from acdc_dagster.tables import Tables

# Dead letters that a listing names, and characters of the message of each.
_SHOWN, _CHARACTERS = 50, 160


def dead_letters(
    tables: Tables, partition: str | None = None, error_class: str | None = None
) -> pl.DataFrame:
    """The rows of `dead_letter` of one partition or all, of one class of failure or all.

    Raises:
        TableError: The storage refused.
    """
    rows = tables.scan("dead_letter", partition)
    if error_class is not None:
        rows = rows.filter(pl.col("error_class") == error_class)
    return tables.collect(rows).sort("partition_key", "line", "custom_id")


def listing(letters: pl.DataFrame) -> Iterator[str]:
    """Lines for a person: the classes with their remedies, then the first letters."""
    classes = letters.group_by("error_class").len().sort("error_class")
    for name, count in classes.iter_rows():
        yield f"{name}: {count}"
        if name in FAILURES:
            yield f"  {FAILURES[name].remedy}"
    shown = letters.head(_SHOWN)
    columns = ("partition_key", "custom_id", "error_class", "attempts", "message")
    for key, custom_id, name, attempts, message in shown.select(columns).iter_rows():
        text = " ".join((message or "").split())
        text = text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        yield f"{key}  {custom_id}  {name}, {times}: {text}"
    if letters.height > shown.height:
        yield f"… and {letters.height - shown.height} more"


def export(tables: Tables, letters: pl.DataFrame, file: Path) -> None:
    """Write the requests of dead letters as an OpenAI batch file.

    Each line has the body as `raw_requests` holds it, so the file is a job's source, or a
    provider's, without further ado.

    Raises:
        SourceError: The file cannot be written, or ids repeat over partitions.
    """
    if letters["custom_id"].is_duplicated().any():
        (first,) = letters.filter(letters["custom_id"].is_duplicated())["custom_id"].head(1)
        raise SourceError(
            f"custom_id {first!r} is a dead letter of more than one partition.",
            "Export one partition at a time: --partition.",
        )
    requests = tables.collect(
        tables.scan("raw_requests")
        .join(
            letters.lazy().select("partition_key", "custom_id"), on=["partition_key", "custom_id"]
        )
        .select("custom_id", "endpoint", "body", "line")
    ).sort("line", "custom_id")
    try:
        with file.open("w", encoding="utf-8", newline="\n") as stream:
            for custom_id, url, body in requests.select(
                "custom_id", "endpoint", "body"
            ).iter_rows():
                head = json.dumps({"custom_id": custom_id, "method": "POST", "url": url})
                stream.write(f'{head[:-1]}, "body": {body}}}\n')
    except OSError as error:
        raise SourceError(
            f"{file} cannot be written: {error}", "Name another file with --export."
        ) from error


def requeue(tables: Tables, letters: pl.DataFrame) -> None:
    """Have the next materialisation of `inference` ask these requests again.

    They have all attempts of their class again, and leave `dead_letter` once they are answered.

    Raises:
        TableError: The storage refused; nothing is queued then.
    """
    if letters.is_empty():
        return
    asked = letters.select("partition_key", "custom_id", "request_hash")
    rows = pl.concat(
        some.join(_last_attempts(tables, partition, some), on="request_hash", how="left")
        for (partition,), some in asked.group_by("partition_key", maintain_order=True)
    ).with_columns(requeued_at=pl.lit(datetime.now(UTC)))
    tables.appender("requeued", f"requeue/{uuid4().hex}").append(rows.to_dicts())


def _last_attempts(tables: Tables, partition: object, letters: pl.DataFrame) -> pl.DataFrame:
    """The number of the last attempt so far of each letter's request, as `after_attempt`."""
    return tables.collect(
        tables.scan("inference")
        .filter(counts_for(str(partition)))
        .join(letters.lazy(), on="request_hash", how="semi")
        .group_by("request_hash")
        .agg(pl.col("attempt").max().alias("after_attempt"))
    )
