"""What a person sees of a table in the Dagster UI."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import polars as pl

from acdc_dagster.answer_schema import AnswerColumn
from acdc_dagster.columns import DESCRIPTIONS
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.lineage import markdown
from acdc_dagster.planning.choice import Choice
from acdc_dagster.planning.forecast_report import candidate_table
from acdc_dagster.planning.plan import Plan
from acdc_dagster.prefix.examine.columns import order_of_columns
from acdc_dagster.prefix.image_store import ImageStats
from acdc_dagster.reconcile.costs import Comparison
from acdc_dagster.reconcile.evaluation import Evaluation
from acdc_dagster.reconcile.run_record import Health
from acdc_dagster.reconcile.savings import Savings
from acdc_dagster.requests.stage import source_of
from acdc_dagster.requests.tables.table import TableSource
from acdc_dagster.schemas import SCHEMAS, TableName
from acdc_dagster.tables import Tables

_PREVIEW_ROWS = 5
# The first rows of a table, by which the order of its columns is judged.
_ORDER_ROWS = 20_000
_PREVIEW_CHARACTERS = 160
_SPOT_CHECK_ROWS = 20
# Bulk and bookkeeping that say nothing at a glance.
_HIDDEN: dict[TableName, tuple[str, ...]] = {
    "raw_requests": ("endpoint", "model", "source"),
    "sorted_requests": ("token_ids", "sampling", "images", "image_tokens"),
    "profile": ("plan", "why"),
    "inference": ("error_class", "error_message", "chunk", "worker", "run_id"),
    "outputs": tuple(set(SCHEMAS["outputs"]) - {"custom_id", "status", "text"}),
}


def table_metadata(
    tables: Tables, name: TableName, partition: str, answers: Sequence[AnswerColumn] = ()
) -> dict[str, Any]:
    """Place, row count, columns and the first rows of one partition of a table.

    Args:
        tables: The job's tables.
        name: The table.
        partition: The partition key.
        answers: Columns that only this job's `outputs` have.
    """
    descriptions = {column: DESCRIPTIONS.get(column) for column in SCHEMAS[name]}
    descriptions |= {column.name: column.description for column in answers}
    rows = tables.scan(name, partition)
    schema = rows.collect_schema()
    return {
        "dagster/partition_row_count": tables.count(name, partition),
        "dagster/column_schema": dg.TableSchema(
            [
                dg.TableColumn(column, str(dtype), descriptions.get(column))
                for column, dtype in schema.items()
            ]
        ),
        "location": table_path(tables, name),
        "preview": _preview(rows.head(_PREVIEW_ROWS).collect(), name),
    }


def column_metadata(job: Job, deployment: Deployment, partition: str) -> dict[str, Any]:
    """What another order of the prompt's columns would share; nothing if the source has none.

    It is advice: a source that cannot be read any more is no reason to fail.
    """
    try:
        source = source_of(job, deployment, partition)
        found = order_of_columns(source, _ORDER_ROWS) if isinstance(source, TableSource) else None
    except SourceError:
        return {}
    if found is None:
        return {}
    _, order = found
    return {
        "column_sharing": round(order.given_sharing, 4),
        "column_sharing_possible": round(order.best_sharing, 4),
        "columns_to_move_first": ", ".join(order.moved) or "none",
    }


def plan_metadata(plan: Plan, choice: Choice | None) -> dict[str, Any]:
    """The plan, why it is so, what it is expected to take and what it was chosen from."""
    shown: dict[str, Any] = {
        "plan": dg.MetadataValue.json(plan.model_dump()),
        "why": dg.MetadataValue.md("\n".join(f"- {reason}" for reason in plan.why)),
        "pinned": ", ".join(plan.pinned) or "none",
    }
    if choice is not None:
        table = "\n".join(candidate_table(choice))
        shown["candidates"] = dg.MetadataValue.md(f"```text\n{table}\n```")
    if plan.predicted is not None:
        shown["predicted_seconds"] = round(plan.predicted.seconds, 1)
        shown["predicted_gpu_hours"] = round(plan.predicted.gpu_seconds / 3600, 4)
        shown["predicted_from"] = plan.predicted.source
        if plan.predicted.cost is not None:
            shown["predicted_cost"] = round(plan.predicted.cost, 6)
    return shown


def health_metadata(health: Health, compared: Comparison, tables: Tables) -> dict[str, Any]:
    """How a run went, as numbers that the UI plots over runs; what is not known is left out."""
    numbers = {
        "items_per_minute": health.items_per_minute,
        "failure_rate": health.failure_rate,
        "retry_rate": health.retry_rate,
        "mean_context": health.mean_context,
        "latency_p99": health.latency_p99,
        "run_cost": health.cost,
        "cost": compared.cost,
        "cost_in_provider_batches": compared.batch,
        "cost_online": compared.online,
    }
    return {
        **{name: round(value, 6) for name, value in numbers.items() if value is not None},
        "cost_compared": str(compared),
        "runs_table": table_path(tables, "runs"),
    }


def savings_metadata(savings: Savings) -> dict[str, Any]:
    """What reuse and deduplication saved, as numbers that the UI plots; money where it is known."""
    numbers = {
        f"{name}_{what}": number
        for name, saved in (("reused", savings.reused), ("repeated", savings.repeated))
        for what, number in vars(saved).items()
        if number is not None
    }
    return {**numbers, "saved": str(savings)}


def evaluation_metadata(evaluation: Evaluation | None, tables: Tables) -> dict[str, Any]:
    """How the evaluation set was answered; nothing of a job without, or if nothing was."""
    if evaluation is None or evaluation.score is None:
        return {}
    return {
        "evaluation_score": round(evaluation.score, 6),
        "evaluation_items": evaluation.scored,
        "evaluation_table": table_path(tables, "evaluation"),
    }


def spot_check_metadata(sample: pl.DataFrame, tables: Tables) -> dict[str, Any]:
    """The first rows of a spot check side by side, and where all of them are."""
    shown = sample.head(_SPOT_CHECK_ROWS).select("custom_id", "input", "text", "status")
    return {
        "spot_check": dg.MetadataValue.md(
            markdown.table(["custom_id", "input", "answer", "status"], shown.iter_rows())
        ),
        "spot_checks_table": table_path(tables, "spot_checks"),
    }


def image_metadata(stats: ImageStats) -> dict[str, int | float]:
    """What a partition's requests show, if they show images."""
    if not stats.shown:
        return {}
    return {
        "images": stats.shown,
        "distinct_images": stats.distinct,
        "image_bytes": stats.bytes,
        "encoder_runs_saved": round(stats.saved, 4),
        "requests_of_unknown_length": stats.unknown,
    }


def table_path(tables: Tables, name: TableName) -> dg.PathMetadataValue:
    """Where a table lies, as the UI shows a path."""
    return dg.PathMetadataValue(tables.uri(name))


def _preview(rows: pl.DataFrame, name: TableName) -> dg.TableMetadataValue:
    """A few rows as a table of short texts."""
    hidden = {"partition_key", *_HIDDEN.get(name, ())}
    if name == "outputs" and set(rows.columns) - SCHEMAS[name].keys():
        hidden.add("text")  # its columns say the same
    columns = [column for column in rows.columns if column not in hidden]
    shown = rows.select(columns)
    return dg.MetadataValue.table(
        records=[
            dg.TableRecord({column: _short(value) for column, value in row.items()})
            for row in shown.iter_rows(named=True)
        ],
        schema=dg.TableSchema([dg.TableColumn(column, "string") for column in columns]),
    )


def percent(share: float | None) -> str:
    """A share as people read it; "none" where there is nothing to share."""
    return "none" if share is None else f"{100 * share:.1f} %"


def counts(values: Mapping[str, int]) -> str:
    """Counts by name on one line."""
    return ", ".join(f"{name}: {count}" for name, count in values.items()) or "none"


def _short(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _PREVIEW_CHARACTERS else text[: _PREVIEW_CHARACTERS - 1] + "…"
