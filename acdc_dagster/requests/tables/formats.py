"""The formats that a source table may have, and what reading one raises."""

from pathlib import Path

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from polars.exceptions import PanicException, PolarsError

from acdc_dagster.requests.lines import local_files
from acdc_dagster.requests.tables.csv_table import CsvTable
from acdc_dagster.requests.tables.ndjson_table import NdjsonTable
from acdc_dagster.requests.tables.slices import ScannedTable, Table
from acdc_dagster.source import TableFormat

# What a broken table raises; the Rust side may also panic, which is no Exception.
BROKEN = (PolarsError, PanicException, DeltaError, OSError, EOFError)


def open_table(
    table_format: TableFormat,
    place: str,
    storage_options: dict[str, str],
    delta: DeltaTable | None,
) -> Table:
    """The table at a path, glob or URI.

    Args:
        table_format: What it is.
        place: Where.
        storage_options: For a URI.
        delta: The table at the version to read, if it is a Delta table.

    Raises:
        OSError: A Parquet file of this machine has no bytes.
    """
    if delta is not None:
        return ScannedTable(pl.scan_delta(delta))
    match table_format:
        case "parquet":
            remote = "://" in place
            _check_parquet(place)
            return ScannedTable(
                pl.scan_parquet(
                    place,
                    glob=remote or not Path(place).exists(),
                    storage_options=storage_options if remote else None,
                )
            )
        case "csv":
            return CsvTable(place, storage_options)
        case _:
            return NdjsonTable(place, storage_options)


def stamps(place: str) -> list[tuple[Path, int, int]]:
    """Size and time of change of each file of this machine at a path or glob."""
    files = [
        file
        for found in local_files(place)
        for file in (sorted(found.rglob("*")) if found.is_dir() else [found])
    ]
    stats = [(file, file.stat()) for file in files]
    return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def _check_parquet(place: str) -> None:
    """See that no file is empty: polars passes over such a file, and its rows would be missing.

    A mark such as `_SUCCESS`, which the writer of a folder leaves, is no file of the table.
    """
    for file, size, _ in stamps(place):
        if size == 0 and file.is_file() and not file.name.startswith(("_", ".")):
            raise OSError(f"{file} has no bytes, so it is no Parquet file")


def first_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
