# pyright: reportUnknownMemberType=false
# Dagster types what its public functions take only in part.
"""`acdc run`: one partition of a job through Dagster, from a terminal."""

import os
from collections.abc import Iterator
from pathlib import Path

import click
import dagster as dg
import polars as pl

from acdc_dagster.definitions import build
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.job import WHOLE, Job
from acdc_dagster.lineage.partitions import partitions_of
from acdc_dagster.schemas import SCHEMAS
from acdc_dagster.tables import Tables

_SHOWN_ANSWERS = 3


def run_job(name: str, partition: str | None) -> bool:
    """Materialise a job's five assets for one partition and print what came out.

    Returns:
        Whether all five are materialised.

    Raises:
        DeclarationError: There is no such job or partition, or a declaration is wrong.
    """
    deployment = Deployment.load()
    job = deployment.job(name)
    _check_partition(job, partition)
    definitions = build(deployment)
    with _instance(deployment) as instance:
        result = definitions.resolve_job_def(f"{name}_job").execute_in_process(
            run_config={"loggers": {"console": {}}},
            instance=instance,
            partition_key=partition,
            raise_on_error=False,
        )
    tables = Tables(deployment.tables_root, name, deployment.environment.storage_options)
    if result.success:
        for line in _summary(
            job, tables, partition or WHOLE, _computed(result, tables, partition or WHOLE)
        ):
            click.echo(line)
    else:
        click.echo(
            f"The run failed; what was computed is kept. Mend the cause, then: acdc run {name}"
            + (f" --partition {partition}" if partition else ""),
            err=True,
        )
    return result.success


def _instance(deployment: Deployment) -> dg.DagsterInstance:
    """Where the run is recorded: DAGSTER_HOME, else the deployment's dagster.yaml, else nowhere."""
    # dagster.yaml keeps its paths relative, as `dagster dev` started in the deployment sees them.
    os.chdir(deployment.root)
    home = os.environ.get("DAGSTER_HOME")
    if home and not (Path(home).is_absolute() and Path(home).is_dir()):
        raise DeclarationError(
            f"DAGSTER_HOME is {home}, which is no absolute path of a folder.",
            "Make the folder, or unset DAGSTER_HOME to use the deployment's dagster.yaml.",
        )
    if home:
        return dg.DagsterInstance.get()
    if (deployment.root / "dagster.yaml").is_file():
        os.environ["DAGSTER_HOME"] = str(deployment.root)
        return dg.DagsterInstance.get()
    click.echo("No DAGSTER_HOME and no dagster.yaml: this run will not show in any UI.", err=True)
    return dg.DagsterInstance.ephemeral()


def _check_partition(job: Job, partition: str | None) -> None:
    partitions = partitions_of(job.declared)
    if partitions is None:
        if partition is not None:
            raise DeclarationError(f"{job.name} has no partitions.", "Leave --partition out.")
        return
    keys = partitions.get_partition_keys()
    if partition not in keys:
        known = f"{keys[0]} to {keys[-1]}" if len(keys) > 5 else ", ".join(keys) or "none yet"
        raise DeclarationError(
            f"{job.name} needs a partition."
            if partition is None
            else f"{job.name} has no partition {partition!r}.",
            f"Give --partition with one of: {known}.",
        )


def _computed(result: dg.ExecuteInProcessResult, tables: Tables, partition: str) -> str:
    """What the engines did in this run, its later attempts too."""
    tokens = (pl.len(), pl.col("prompt_tokens", "cached_tokens").sum())
    own = tables.scan("inference", partition).filter(pl.col("run_id") == result.run_id)
    requests, prompt, cached = tables.collect(own.select(tokens)).row(0)
    if not requests:
        return "nothing to compute, all answers were there"
    hit_rate = f"{100 * cached / prompt:.1f} %" if prompt else "none"
    told = f"{requests:,} computed, prefix hit rate {hit_rate}"
    for event in result.get_asset_materialization_events():
        if event.asset_key is not None and event.asset_key.path[-1] == "inference":
            speed = event.materialization.metadata.get("tokens_per_second")
            if speed is not None and speed.value:
                told += f"; {speed.value} tokens/s"
    return told


def _failed(tables: Tables, partition: str) -> str | None:
    """How many rows have no usable answer, by class; None if all have one."""
    failed = tables.collect(
        tables.scan("outputs", partition).filter(pl.col("status") == "failed").select("error_class")
    )
    if failed.is_empty():
        return None
    classes = failed["error_class"].drop_nulls().value_counts(sort=True).iter_rows()
    told = ", ".join(f"{name}: {count:,}" for name, count in classes)
    total = tables.count("outputs", partition)
    return f"{failed.height:,} of {total:,} outputs have status failed ({told}): see docs/rows.md"


def _summary(job: Job, tables: Tables, partition: str, computed: str) -> Iterator[str]:
    yield ""
    yield f"{job.name}, partition {partition}"
    for name in SCHEMAS:
        yield f"  {name:<16} {tables.count(name, partition):>8} rows"
    yield f"  {computed}"
    failed = _failed(tables, partition)
    if failed is not None:
        yield f"  {failed}"
    yield ""
    shown = [column.name for column in job.answer_columns] or ["text"]
    outputs = tables.scan("outputs", partition).select("custom_id", *shown)
    for row in outputs.head(_SHOWN_ANSWERS).collect().iter_rows(named=True):
        answer = ", ".join(f"{column}: {row[column]}" for column in shown)
        yield f"  {row['custom_id']} → {answer}"
    yield ""
    yield f"  tables: {tables.uri('outputs').rpartition('/')[0]}"
    yield "  UI:     make ui, or dagster dev in this folder; then http://localhost:3000"
