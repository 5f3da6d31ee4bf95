"""What tests of outputs share: a job up to its plan, and results as a worker would commit them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
from support import MODEL, Declare, write_table

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.planning.stage import profile
from acdc_dagster.prefix.reuse import apart
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.reconcile.stage import OutputStats, reconcile
from acdc_dagster.requests.prompts.evaluation import evaluation_requests
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

START = datetime(2026, 11, 2, tzinfo=UTC)
PARTITION = "all"

# What an engine says of requests beside their text.
STOP = {
    "finish_reason": "stop",
    "prompt_tokens": 10,
    "cached_tokens": 4,
    "completion_tokens": 3,
    "engine": "test 1",
}
LENGTH = {**STOP, "finish_reason": "length"}
REFUSED = {"error_class": "permanent", "error_message": "refused"}
LATE = {"error_class": "transient", "error_message": "too late"}


@dataclass(frozen=True)
class Lineage:
    """The tables of a job over rows `id`, `day`, `text`; results are given by custom_id."""

    job: Job
    deployment: Deployment
    tables: Tables

    def prepare(self, partition: str = PARTITION) -> None:
        """Stages 1 to 3."""
        model = self.deployment.model(MODEL)
        take_in(self.job, self.deployment, self.tables, partition)
        sort_requests(
            model,
            self.tables,
            partition,
            block_size=32,
            apart=apart(self.job, self.tables, partition),
            evaluation=evaluation_requests(self.job),
        )
        profile(self.job, self.deployment, model, self.tables, partition)

    def results(
        self,
        results: dict[str, dict[str, Any]],
        partition: str = PARTITION,
        run: str = "run",
        attempt: int = 1,
        minute: int = 0,
    ) -> None:
        """Commit results, as so many minutes after the start."""
        asked = self.tables.read("request_map", partition, ["custom_id", "request_hash"])
        hashes = dict(asked.iter_rows())
        at = START + timedelta(minutes=minute)
        common = {
            "partition_key": partition,
            "attempt": attempt,
            "run_id": run,
            "started_at": at,
            "finished_at": at + timedelta(seconds=1),
        }
        self.tables.appender("inference", f"{partition}/{run}/{attempt}/{minute}").append(
            [{**common, **row, "request_hash": hashes[name]} for name, row in results.items()]
        )

    def reconcile(self, partition: str = PARTITION) -> OutputStats:
        """Stage 5."""
        return reconcile(self.job, self.tables, partition)

    def outputs(self, *columns: str, partition: str = PARTITION) -> dict[str, Any]:
        """custom_id → its row in `outputs`, or its value if only one column is asked for."""
        return by_id(self.tables.read("outputs", partition), columns)

    def dead(self, *columns: str, partition: str = PARTITION) -> dict[str, Any]:
        """custom_id → its row in `dead_letter`."""
        return by_id(self.tables.read("dead_letter", partition), columns)


def by_id(rows: pl.DataFrame, columns: tuple[str, ...]) -> dict[str, Any]:
    """custom_id → the values of these columns; not in a tuple if it is one."""
    names = columns or tuple(rows.columns)
    return {
        row["custom_id"]: row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
        for row in rows.iter_rows(named=True)
    }


def lineage(
    deployment: Deployment,
    declare: Declare,
    rows: list[dict[str, Any]],
    *,
    prompt: str = "Count {{ id }}",
    **attributes: Any,
) -> Lineage:
    """A job over these rows; partitioned by `day` if they have one."""
    write_table(deployment.root / "rows", rows)
    source: dict[str, Any] = {"table": "rows", "id_column": "id"}
    if "day" in rows[0]:
        source["partition_column"] = "day"
        days = list(dict.fromkeys(row["day"] for row in rows))
        attributes["partitions"] = {"cadence": "static", "keys": days}
    declared = {"source": source, "model": MODEL, **attributes}
    job = declare("counting", declared, prompt_dot_md=prompt)
    return Lineage(job, deployment, Tables(deployment.tables_root, job.name))
