"""A table and a prompt as a source: each row becomes one chat request."""

import difflib
from typing import Any

import msgspec
import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from polars.exceptions import PolarsError

from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.requests.body import CHAT, Refused, check_custom_id, parse_body
from acdc_dagster.requests.intake import Intake, Taken
from acdc_dagster.requests.prompt import Prompt, RowError


def open_table(job: Job, place: str, storage_options: dict[str, str]) -> pl.LazyFrame:
    """A scan of the job's source table, its columns checked against the job.

    Args:
        job: A job whose source is a table.
        place: The table's resolved path or URI.
        storage_options: For Delta tables.

    Raises:
        SourceError: The table cannot be opened, or lacks a column that the job names.
    """
    try:
        rows = _scan(job, place, storage_options)
        columns = rows.collect_schema().names()
    except (PolarsError, DeltaError, OSError) as error:
        raise SourceError(
            f"The source table {place} cannot be read as {job.declared.source.table_format}: "
            f"{_first_line(error)}",
            "Correct source.table (and source.format) in the job's defs.yaml, or make the table.",
        ) from error
    for used_by, names in _named_columns(job).items():
        for name in sorted(names - set(columns)):
            near = difflib.get_close_matches(name, columns, n=1)
            raise SourceError(
                f"{used_by} names the column {name!r}, which {place} does not have.",
                (f"Did you mean {near[0]!r}? " if near else "")
                + f"Its columns are: {', '.join(columns)}.",
            )
    return rows


def take_table(job: Job, rows: pl.LazyFrame, place: str, partition: str) -> Taken:
    """The requests of one partition; rows are numbered from 1 within it.

    Raises:
        SourceError: The table broke while it was read.
    """
    source = job.declared.source
    prompt = Prompt.compile(job.prompt or "", job.prompt_path)
    if source.partition_column is not None:
        key = _key_of(job, rows, source.partition_column)
        rows = rows.filter(key == partition)
    id_column = source.id_column or ""
    wanted = sorted(prompt.columns | {id_column})
    try:
        table = rows.select(wanted).collect()
    except (PolarsError, DeltaError, OSError) as error:
        raise SourceError(
            f"The source table {place} broke while it was read: {_first_line(error)}",
            "Mend the table, then run the partition again; nothing was written.",
        ) from error
    frame = _body_frame(job)
    intake = Intake(job.declared.model)
    for line, row in enumerate(table.iter_rows(named=True), start=1):
        value = row[id_column]
        try:
            custom_id = check_custom_id(None if value is None else str(value))
            try:
                messages = prompt.messages(row)
            except RowError as error:
                raise Refused(
                    "null_or_bad_field", f"The prompt fails: {error}", custom_id
                ) from None
            raw = msgspec.json.encode({**frame, "messages": messages}).decode()
            body = parse_body(CHAT, raw)
        except Refused as refused:
            intake.refuse(refused, place, line, msgspec.json.encode(row, enc_hook=str))
        else:
            intake.accept(custom_id, CHAT, raw, body, place, line, raw.encode())
    return intake.settle()


def _body_frame(job: Job) -> dict[str, Any]:
    """What the bodies of all rows have in common."""
    frame: dict[str, Any] = {"model": job.declared.model, **job.declared.sampling.as_body()}
    if job.answer_schema is not None:
        frame["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": job.answer_schema, "strict": True},
        }
    return frame


def _named_columns(job: Job) -> dict[str, set[str]]:
    """The columns that a job names, by the place that names them."""
    source, where = job.declared.source, job.folder / "defs.yaml"
    return {
        f"{where}: source.id_column": {source.id_column or ""},
        f"{where}: source.partition_column": {source.partition_column}
        if source.partition_column
        else set(),
        str(job.prompt_path): set(Prompt.compile(job.prompt or "", job.prompt_path).columns),
    }


def _scan(job: Job, place: str, storage_options: dict[str, str]) -> pl.LazyFrame:
    match job.declared.source.table_format:
        case "parquet":
            return pl.scan_parquet(place)
        case "csv":
            # Text, all of it: an id like 007 or a column that is numeric at first stays as it is.
            return pl.scan_csv(place, infer_schema=False)
        case "delta":
            return pl.scan_delta(DeltaTable(place, storage_options=storage_options))


def _key_of(job: Job, rows: pl.LazyFrame, column: str) -> pl.Expr:
    """The Dagster partition key that a row belongs to, in the job's time zone."""
    cadence = job.declared.partitions.cadence
    value, dtype = pl.col(column), rows.collect_schema()[column]
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        value = value.dt.convert_time_zone(job.declared.timezone)
        if cadence == "hourly":  # where summer time ends, Dagster names the second hour by offset
            wall = value.dt.strftime("%Y-%m-%d-%H:00")
            before = (value - pl.duration(hours=1)).dt.strftime("%Y-%m-%d-%H:00")
            return pl.when(wall == before).then(wall + value.dt.strftime("%z")).otherwise(wall)
    if isinstance(dtype, (pl.Date, pl.Datetime)):
        match cadence:
            case "hourly":
                return value.dt.strftime("%Y-%m-%d-%H:00")
            case "weekly":  # Dagster's weeks start on Sunday
                sunday = value.dt.date() - pl.duration(days=value.dt.weekday() % 7)
                return sunday.dt.strftime("%Y-%m-%d")
            case "monthly":
                return value.dt.strftime("%Y-%m-01")
            case _:
                return value.dt.strftime("%Y-%m-%d")
    return value.cast(pl.String)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
