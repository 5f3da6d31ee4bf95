"""What tests of tables as a source share: jobs over a table, and the source read to its end."""

import json
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import write_deltalake
from support import MODEL, Declare, Taken, take_source

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.requests.tables.table import TableSource


def over_table(
    declare: Declare,
    table: str = "items",
    prompt: str = "{{ title }}",
    *,
    source: dict[str, Any] | None = None,
    **attributes: Any,
) -> Job:
    """A job over a table with an id column `id`, if `source` does not say otherwise."""
    ids = {} if source and "make_ids" in source else {"id_column": "id"}
    place = {"table": table, **ids, **(source or {})}
    return declare("items", {"source": place, "model": MODEL, **attributes}, prompt_dot_md=prompt)


def by_day(cadence: str, **declared: Any) -> dict[str, Any]:
    """Declares partitions by the column `day`."""
    return {
        "source": {"partition_column": "day"},
        "partitions": {"cadence": cadence, **declared},
    }


def store(place: Path, rows: pl.DataFrame) -> None:
    """Write a table in the format that its name tells."""
    match place.suffix:
        case ".parquet":
            rows.write_parquet(place)
        case ".csv":
            rows.write_csv(place)
        case ".ndjson":
            rows.write_ndjson(place)
        case _:
            write_deltalake(str(place), rows, mode="overwrite")


def drain(source: TableSource) -> Taken:
    """The source read to its end."""
    return take_source(source, model=None)


def open_source(job: Job, deployment: Deployment, partition: str = "all") -> TableSource:
    """The job's table as a source."""
    place = deployment.root / (job.declared.source.table or "")
    return TableSource(job, str(place), {}, partition)


def take(job: Job, rows: pl.DataFrame, deployment: Deployment, partition: str = "all") -> Taken:
    """The intake of one partition of these rows."""
    store(deployment.root / (job.declared.source.table or ""), rows)
    return drain(open_source(job, deployment, partition))


def contents(taken: Taken) -> dict[str, str]:
    """What each request asks, by its id."""
    return {
        custom_id: json.loads(body)["messages"][-1]["content"]
        for custom_id, body in taken.requests.select("custom_id", "body").iter_rows()
    }
