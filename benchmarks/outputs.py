"""The two sides of `benchmarks.reconcile`, and the seeded results that they share.

Each function that returns `Work` is a step of `benchmarks.measure`: what it does is not timed, what
it returns is.
"""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from deltalake import DeltaTable

from acdc_dagster.job import Job
from acdc_dagster.reconcile.stage import reconcile
from acdc_dagster.schemas import SCHEMAS, TableName
from acdc_dagster.tables import Tables
from benchmarks.measure import Work
from benchmarks.recorded import simulated_plan

PARTITION = "all"
_REPAIRED = 5  # one row of so many is repaired
_CATEGORIES = ["kitchen", "garden", "toys", "office"]
_SCHEMA = {
    "type": "object",
    "properties": {
        "category": {"type": "string", "enum": _CATEGORIES},
        "material": {"type": "string", "maxLength": 24},
        "gift": {"type": "boolean"},
        "price": {"type": "number"},
    },
    "required": ["category", "material", "gift", "price"],
    "additionalProperties": False,
}
_MODEL = "a-model"


def results(folder: str, rows: int) -> Work:
    """Write what stages 1 to 4 leave of so many rows: every answer different, none wrong."""

    def write() -> int:
        shutil.rmtree(folder, ignore_errors=True)
        job, tables = _job(folder), _tables(folder)
        numbers = np.arange(rows)
        mapped = pl.DataFrame({"line": numbers + 1, "request_hash": _hashes(numbers)}).with_columns(
            custom_id=pl.format("item-{}", "line"),
            input_rows=pl.lit(1),
            prompt_version=pl.lit(job.prompt_version),
        )
        tables.replace("request_map", PARTITION, mapped)
        tables.replace("raw_requests", PARTITION, _whole("raw_requests", mapped))
        # Only the model's name is read of it.
        plan = simulated_plan(0, {}).model_copy(update={"model": _MODEL})
        tables.replace(
            "profile",
            PARTITION,
            _whole("profile", pl.DataFrame({"plan": [plan.model_dump_json()]})),
        )
        # A worker answers in the order of tokens, not of lines.
        order = np.random.default_rng(0).permutation(rows)
        tables.replace("inference", PARTITION, _whole("inference", _answers(order)))
        return rows

    return write


def reconciled(folder: str) -> Work:
    """Stage 5 of this package, from table to table."""
    job, tables = _job(folder), _tables(folder)

    def run() -> int:
        return reconcile(job, tables, PARTITION).outputs

    return run


def written(folder: str) -> Work:
    """The bound: the same rows, in memory and out of order, sorted and written as Parquet."""
    outputs = _tables(folder).read("outputs", PARTITION).sample(fraction=1.0, shuffle=True, seed=0)
    file = Path(folder) / "written.parquet"

    def run() -> float:
        outputs.sort("line", "custom_id").write_parquet(file, compression_level=1)
        return outputs.estimated_size() / 1e9

    return run


def asked_again(folder: str) -> Work:
    """Give every fifth request a second attempt, whose answer counts from now on."""
    tables = _tables(folder)

    def write() -> int:
        of_first = tables.read("inference", PARTITION)
        numbers = np.arange(0, of_first.height, _REPAIRED)
        second = _answers(numbers).with_columns(attempt=pl.lit(2), cached_tokens=pl.lit(0))
        rows = pl.concat([of_first, _whole("inference", second)])
        tables.replace("inference", PARTITION, rows)
        return len(numbers)

    return write


def merged(folder: str) -> Work:
    """The bound of a repair: delta-rs merges the changed rows, as they are, into `outputs`."""
    tables, copy = _tables(folder), str(Path(folder) / "merged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(tables.uri("outputs"), copy)
    changed = pl.col("line") % _REPAIRED == 1
    rows = tables.read("outputs", PARTITION).filter(changed).with_columns(attempts=pl.lit(3))

    def run() -> int:
        merge = DeltaTable(copy).merge(
            rows.with_columns(pl.col("attempts").cast(pl.Int32)),
            predicate=f"t.partition_key = '{PARTITION}' AND t.custom_id = s.custom_id",
            source_alias="s",
            target_alias="t",
        )
        done = merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return int(done["num_target_rows_updated"])

    return run


def _answers(order: np.ndarray[Any, np.dtype[np.int64]]) -> pl.DataFrame:
    at = datetime(2026, 11, 2, tzinfo=UTC)
    return pl.DataFrame({"number": order}).select(
        request_hash=_hashes(order),
        text=pl.concat_str(
            pl.lit('{"category": "'),
            pl.Series(_CATEGORIES).gather(order % len(_CATEGORIES)),
            pl.lit('", "material": "no '),
            "number",
            pl.lit('", "gift": '),
            pl.when(pl.col("number") % 2 == 0).then(pl.lit("true")).otherwise(pl.lit("false")),
            pl.lit(', "price": '),
            (pl.col("number") / 100).cast(pl.String),
            pl.lit("}"),
        ),
        attempt=pl.lit(1),
        finish_reason=pl.lit("stop"),
        prompt_tokens=pl.lit(300),
        cached_tokens=pl.lit(250),
        completion_tokens=pl.col("number") % 40 + 10,
        started_at=pl.lit(at),
        finished_at=pl.lit(at) + pl.duration(milliseconds=pl.int_range(pl.len())),
        engine=pl.lit("an engine"),
        run_id=pl.lit("run"),
    )


def _hashes(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pl.Series:
    """Hashes like real ones: 32 digits in no order."""
    halves = [pl.Series(numbers).hash(seed) for seed in (1, 2)]
    data = np.stack([half.to_numpy() for half in halves], axis=1).tobytes()
    parts = [data[at : at + 16] for at in range(0, len(data), 16)]
    return pl.Series("request_hash", parts, dtype=pl.Binary).bin.encode("hex")


def _whole(name: TableName, rows: pl.DataFrame) -> pl.DataFrame:
    """With all columns of a table; null where nothing is given."""
    return rows.select(
        (pl.col(column) if column in rows.columns else pl.lit(None)).cast(dtype).alias(column)
        for column, dtype in SCHEMAS[name].items()
    )


def _job(folder: str) -> Job:
    place = Path(folder) / "assets" / "tagged"
    place.mkdir(parents=True, exist_ok=True)
    (place / "prompt.md").write_text("Tag {{ title }}.", encoding="utf-8")
    declared = {
        "type": "acdc_dagster.BatchInferenceComponent",
        "attributes": {
            "source": {"table": "items", "id_column": "id"},
            "model": _MODEL,
            "answer_schema": _SCHEMA,
        },
    }
    (place / "defs.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    return Job.load(place)


def _tables(folder: str) -> Tables:
    return Tables(str(Path(folder) / "tables"), "tagged")
