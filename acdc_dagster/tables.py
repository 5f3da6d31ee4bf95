"""The Delta tables that a job's rows move through, and the three ways in which they are written.

One folder of tables a job, each partitioned by the job's Dagster partition:

- `replace`: a stage re-run replaces its partition in one commit (nothing is read, nothing merges);
- `Appender`: a worker adds chunks, each exactly once, however often it is killed;
- reading is a polars scan of one partition, empty with the right columns if nothing is there yet.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import polars as pl
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from polars.exceptions import PolarsError
from pyarrow import ArrowException

from acdc_dagster.datafiles import DataFile, files_of, in_order
from acdc_dagster.errors import AcdcError, ShardTakenError
from acdc_dagster.schemas import PARTITION_BY, SCHEMAS, TableName
from acdc_dagster.stream import FrameStream


class TableError(AcdcError):
    """The storage refused to read or write a table."""


# Small enough that a worker finds its shard by the statistics and reads little else.
_ROW_GROUP = 8192
# Bytes of a row group that is read as a whole, uncompressed and about.
_ROW_GROUP_BYTES = 32 * 2**20


def _writer(rows: int = _ROW_GROUP) -> WriterProperties:
    """How Parquet is written.

    Rows of one job share prefixes, so neighbours compress well; snappy, the default, misses that.
    Repeated values compress too: with a dictionary in each row group, which takes as long to build
    as all the rest, the files are no smaller.
    """
    return WriterProperties(
        compression="ZSTD",
        compression_level=1,
        max_row_group_size=rows,
        default_column_properties=ColumnProperties(dictionary_enabled=False),
    )


@dataclass(frozen=True)
class Tables:
    """The tables of one job under one root.

    Args:
        root: Folder or URI that holds a folder a job.
        job: The job's name.
        storage_options: Passed to delta-rs.
    """

    root: str
    job: str
    storage_options: dict[str, str] = field(default_factory=dict[str, str])

    def uri(self, name: TableName) -> str:
        """Where the table lies."""
        return f"{self.root.rstrip('/')}/{self.job}/{name}"

    def scan(self, name: TableName, partition: str | None = None) -> pl.LazyFrame:
        """The rows of one partition, or of all; no rows if the table is not there yet.

        A column that the table was made without is null.
        """
        with _storage(f"read {self.uri(name)}"):
            table = self._open(name)
            if table is None:
                return pl.LazyFrame(schema=SCHEMAS[name])
            rows = pl.scan_delta(table)
            there = rows.collect_schema()
            later = [
                pl.lit(None, dtype).alias(column)
                for column, dtype in SCHEMAS[name].items()
                if column not in there
            ]
            rows = rows.with_columns(later)
        return rows if partition is None else rows.filter(pl.col("partition_key") == partition)

    def read(
        self, name: TableName, partition: str | None = None, columns: list[str] | None = None
    ) -> pl.DataFrame:
        """`scan`, collected; only `columns` if given."""
        rows = self.scan(name, partition)
        return self.collect(rows if columns is None else rows.select(columns))

    def collect(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """What a query over the tables gives.

        Raises:
            TableError: A file of a table is gone or broken.
        """
        with _storage(f"read the tables of {self.job}"):
            return rows.collect()

    def batches(self, name: TableName, partition: str, rows: int) -> Iterator[pl.DataFrame]:
        """The rows of one partition, file by file; see `DataFile.batches`.

        Raises:
            TableError: A file of the table is gone or broken.
        """
        with _storage(f"read {self.uri(name)}"):
            for file in self._files(name, partition):
                yield from file.batches(rows)

    def in_order(
        self,
        name: TableName,
        partition: str,
        columns: list[str],
        wanted: Callable[[int, int], bool],
    ) -> Iterator[pl.DataFrame]:
        """Rows of one partition sorted by the first of `columns`; see `datafiles.in_order`.

        A column that the table was made without is null.

        Raises:
            TableError: A file of the table is gone or broken.
        """
        with _storage(f"read {self.uri(name)}"):
            for rows in in_order(self._files(name, partition), columns[0], columns, wanted):
                later = [
                    pl.lit(None, SCHEMAS[name][column]).alias(column)
                    for column in columns
                    if column not in rows.columns
                ]
                yield rows.with_columns(later).select(columns)

    def partitions(self, name: TableName) -> list[str]:
        """The partition keys that a table has rows of; read from its log, not from its rows."""
        with _storage(f"read {self.uri(name)}"):
            table = self._open(name)
            if table is None:
                return []
            added = pl.DataFrame(table.get_add_actions(flatten=True))
            return added["partition.partition_key"].unique().sort().to_list() if len(added) else []

    def count(self, name: TableName, partition: str | None = None) -> int:
        """Rows of one partition, or of all."""
        return self.collect(self.scan(name, partition).select(pl.len())).item()

    def replace(
        self,
        name: TableName,
        partition: str,
        rows: pl.DataFrame | Iterable[pl.DataFrame],
        *,
        schema: pl.Schema | None = None,
        stage: str | None = None,
        row_bytes: float = 0.0,
        marks: Mapping[str, int] | None = None,
    ) -> None:
        """Replace one partition (of one stage, for `rejected`) in a single commit.

        Args:
            name: The table.
            partition: Every row of `rows` gets this partition_key.
            rows: What the partition holds afterwards; may be empty. Frames are taken one by one
                while they are written; if making one raises, nothing is committed.
            schema: For a table whose columns depend on the job; new columns are added to it.
            stage: For `rejected`: the stage whose rows are replaced.
            row_bytes: About how large a row is, so that row groups are small enough to be read one
                by one; needed only where rows can be larger than some kB.
            marks: Numbers to keep with the commit, each until another comes by its name.
        """
        target = schema or SCHEMAS[name]
        keys = {"partition_key": partition} | ({"stage": stage} if stage is not None else {})
        frames = [rows] if isinstance(rows, pl.DataFrame) else rows
        stream = FrameStream(frames, keys, target)
        predicate = " AND ".join(f"{key} = {_quoted(value)}" for key, value in keys.items())
        group = min(max(int(_ROW_GROUP_BYTES / max(row_bytes, 1.0)), 1), _ROW_GROUP)
        with _storage(f"write {self.uri(name)}"):
            table = self._made(name, target)
        # What making the frames raises is no fault of the storage, so it passes outside of it.
        with stream.reading() as reader, _storage(f"write {self.uri(name)}"):
            write_deltalake(
                table,
                reader,
                mode="overwrite",
                predicate=predicate,
                schema_mode="merge" if schema is not None else None,
                writer_properties=_writer(group),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(*mark) for mark in (marks or {}).items()]
                ),
            )

    def mark(self, name: TableName, key: str) -> int | None:
        """The number that a commit of the table left by that name; None if none did."""
        with _storage(f"read {self.uri(name)}"):
            table = self._open(name)
            return None if table is None else table.transaction_version(key)

    def appender(self, name: TableName, app_id: str) -> "Appender":
        """A writer that adds chunks to the table exactly once; makes the table if need be."""
        with _storage(f"write {self.uri(name)}"):
            table = self._made(name, SCHEMAS[name])
            return Appender(table, app_id, SCHEMAS[name])

    def _files(self, name: TableName, partition: str) -> list[DataFile]:
        table = self._open(name)
        if table is None:
            return []
        return files_of(table, self.uri(name), self.storage_options, partition)

    def _open(self, name: TableName) -> DeltaTable | None:
        try:
            return DeltaTable(self.uri(name), storage_options=self.storage_options)
        except TableNotFoundError:
            return None

    def _made(self, name: TableName, schema: pl.Schema) -> DeltaTable:
        """The table, made empty if it is not there yet.

        Making it is a commit of its own: two writers whose first commits both make the table do
        not see each other, and the rows of both stay.
        """
        table = self._open(name)
        if table is not None:
            return self._with_columns(name, table, schema)
        try:
            return DeltaTable.create(
                self.uri(name),
                pl.DataFrame(schema=schema).to_arrow().schema,
                mode="ignore",
                partition_by=PARTITION_BY.get(name, ["partition_key"]),
                storage_options=self.storage_options,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:  # somebody else has made it meanwhile
            return DeltaTable(self.uri(name), storage_options=self.storage_options)

    def _with_columns(self, name: TableName, table: DeltaTable, schema: pl.Schema) -> DeltaTable:
        """The table, with the columns that an earlier version of this package made it without."""
        there = {field.name for field in table.schema().fields}
        later = [column for column in schema if column not in there]
        if not later:
            return table
        made = DeltaSchema.from_arrow(pl.DataFrame(schema=schema).to_arrow().schema)
        try:
            table.alter.add_columns([field for field in made.fields if field.name in later])
        except CommitFailedError:  # somebody else has added them meanwhile
            table = DeltaTable(self.uri(name), storage_options=self.storage_options)
        return table


class Appender:
    """Appends numbered chunks, each exactly once, as the only writer under its `app_id`.

    Delta stores with each commit a transaction `(app_id, number)` but does not refuse a repeated
    one, so the number is checked against the snapshot and the write goes through that same
    snapshot: a rival that committed in between makes the commit fail instead of doubling rows.
    """

    def __init__(self, table: DeltaTable, app_id: str, schema: pl.Schema) -> None:
        self._table = table
        self._app_id = app_id
        self._schema = schema
        self._token = uuid4().hex
        self._last = self._committed()

    def claim(self) -> None:
        """Be the only writer from now on: the next append of any earlier one is refused.

        It is the newest writer that goes on, since nobody can tell whether an earlier one is dead
        or only cut off. A claim takes a number as a chunk does.

        Raises:
            TableError: The storage refused.
        """
        with _storage(f"write {self._table.table_uri}"):
            while True:
                number = self.next_chunk
                try:
                    self._table.create_write_transaction(
                        [],
                        mode="append",
                        schema=self._table.schema(),
                        partition_by=self._table.metadata().partition_columns,
                        commit_properties=self._properties(number),
                    )
                    break
                except CommitFailedError:  # two claims at once: the one that tries again wins
                    self._table.update_incremental()
                    if self._committed() == self._last:
                        raise
                    self._last = self._committed()
        self._last = number

    @property
    def next_chunk(self) -> int:
        """Number of the chunk that `append` writes next, from 0."""
        return self._last + 1

    def append(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Commit `rows` as the next chunk; a column that a row lacks is null.

        Raises:
            ShardTakenError: Somebody else committed under this app_id since the last chunk.
            TableError: The storage refused; the chunk can be appended again.
        """
        number = self.next_chunk
        with _storage(f"write {self._table.table_uri}"):
            self._table.update_incremental()
            if self._committed() != self._last:
                if self._is_mine(number):  # an earlier try got through before its error
                    self._last = number
                    return
                raise self._taken()
            try:
                write_deltalake(
                    self._table,
                    pl.DataFrame(rows, schema=self._schema),
                    mode="append",
                    writer_properties=_writer(),
                    commit_properties=self._properties(number),
                )
            except CommitFailedError as error:
                self._table.update_incremental()
                if self._committed() != self._last and not self._is_mine(number):
                    raise self._taken() from error
                raise
        self._last = number

    def _committed(self) -> int:
        version = self._table.transaction_version(self._app_id)
        return -1 if version is None else version

    def _properties(self, number: int) -> CommitProperties:
        return CommitProperties(
            app_transactions=[Transaction(self._app_id, number)],
            custom_metadata={"acdc_chunk": self._mark(number)},
            max_commit_retries=50,
        )

    def _mark(self, number: int) -> str:
        return f"{self._token}/{number}"

    def _is_mine(self, number: int) -> bool:
        return any(
            commit.get("acdc_chunk") == self._mark(number) for commit in self._table.history(20)
        )

    def _taken(self) -> ShardTakenError:
        return ShardTakenError(
            f"Another worker has taken over this shard ({self._app_id}).",
            "Let the other run finish, or cancel it; then run this partition again. "
            "Nothing was written twice.",
        )


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@contextmanager
def _storage(action: str) -> Generator[None]:
    """Turn what delta-rs and the file system raise into a fault with a remedy."""
    try:
        yield
    except CommitFailedError as error:
        raise TableError(
            f"Could not {action}: another run wrote the same partition at the same time ({error}).",
            "Let the other run finish, then run this partition again. The table holds what one of "
            "the two wrote, whole.",
        ) from error
    except (DeltaError, PolarsError, ArrowException, OSError) as error:
        raise TableError(
            f"Could not {action}: {error}",
            "Check that the storage is there, has room and lets this user write; then run the "
            "partition again. What is committed stays, nothing is half visible.",
        ) from error
