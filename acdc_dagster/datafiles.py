"""The Parquet files of a Delta table's partition, read piece by piece in bounded memory.

polars reads ahead by whole files; a partition can be larger than the memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

_BATCH_BYTES = 32 * 2**20  # of rows that are read at a time, unpacked and about


@dataclass(frozen=True)
class DataFile:
    """One Parquet file."""

    path: str
    storage: PyFileSystem | None

    def open(self) -> Any:
        """The file as a pyarrow.parquet.ParquetFile, to be closed."""
        source: Any = self.path if self.storage is None else self.storage.open_input_file(self.path)
        return pq.ParquetFile(source, buffer_size=2**20)

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """All rows, in the file's order, so many at a time, or fewer where rows are large."""
        with self.open() as file:
            metadata: Any = file.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            largest = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=0)
            at_once = min(max(_BATCH_BYTES // max(largest, 1), 1), rows)
            for batch in file.iter_batches(batch_size=at_once, use_threads=False):
                yield pl.DataFrame(batch)

    def ranges(self, column: str) -> list[tuple[int, int, int]]:
        """(number, least, greatest) of an integer column in each row group."""
        with self.open() as file:
            at = file.schema_arrow.names.index(column)
            metadata: Any = file.metadata
            groups = ((n, metadata.row_group(n).column(at)) for n in range(metadata.num_row_groups))
            return [(n, chunk.statistics.min, chunk.statistics.max) for n, chunk in groups]


def files_of(
    table: DeltaTable, uri: str, storage_options: dict[str, str], partition: str
) -> list[DataFile]:
    """The files of one partition."""
    added = pl.DataFrame(table.get_add_actions(flatten=True))
    paths = added.filter(pl.col("partition.partition_key") == partition)["path"].sort()
    if "://" not in uri:
        return [DataFile(str(Path(uri) / unquote(path)), None) for path in paths]
    handler: Any = DeltaStorageHandler(uri, storage_options)
    storage = PyFileSystem(handler)
    return [DataFile(unquote(path), storage) for path in paths]


def in_order(
    files: list[DataFile], column: str, columns: list[str], wanted: Callable[[int, int], bool]
) -> Iterator[pl.DataFrame]:
    """Rows sorted by an integer column that the files were written in order of.

    A writer mixes neighbouring batches, so rows are held back until no row group that is still to
    be read can have a smaller value; two or three row groups are in memory at a time.

    Args:
        files: The files.
        column: What to sort by.
        columns: What to read; `column` is one of them.
        wanted: Whether anything between two values, both included, is of interest; row groups
            without are not read.
    """
    groups = sorted(
        (low, at, number)
        for at, file in enumerate(files)
        for number, low, high in file.ranges(column)
        if wanted(low, high)
    )
    held: list[pl.DataFrame] = []
    for (_, at, number), following in zip(groups, [*groups[1:], None], strict=True):
        with files[at].open() as file:
            held.append(pl.DataFrame(file.read_row_group(number, columns, use_threads=False)))
        rows = pl.concat(held).sort(column)
        ready = rows.height
        if following is not None:
            ready = int(rows[column].search_sorted(following[0]))
        yield rows.head(ready)
        held = [rows.tail(rows.height - ready)]
