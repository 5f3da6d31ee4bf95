"""A table and a prompt as a source: each row becomes one chat request."""

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.requests.batch import REQUEST, Batch
from acdc_dagster.requests.body import CHAT
from acdc_dagster.requests.prompts.bodies import Bodies, prompt_of
from acdc_dagster.requests.prompts.cuts import Cutter
from acdc_dagster.requests.prompts.prompt import Fields
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.requests.source_chunks import SourceChunk
from acdc_dagster.requests.tables.delta_changes import FileChanges
from acdc_dagster.requests.tables.formats import BROKEN, first_line, open_table, stamps
from acdc_dagster.requests.tables.membership import Membership
from acdc_dagster.requests.tables.row_chunks import RowChunks
from acdc_dagster.requests.tables.row_ids import RowIds
from acdc_dagster.requests.tables.slices import Slice, as_text, rows_as_json

_BATCH_BYTES = 64 * 2**20


class TableSource:
    """One partition of a job's source table; rows are numbered from 1 within it.

    Args:
        job: A job whose source is a table.
        place: The table's resolved path, glob or URI.
        storage_options: For delta-rs, and for polars where `place` is a URI.
        partition: The partition key.
        cutter: Cuts by tokens of the job's model; None if the job does not ask for it.

    Attributes:
        delta: The table at the version that is read, if it is a Delta table.

    Raises:
        DeclarationError: The prompt does not read the column that the job splits.
        SourceError: The table cannot be opened, or lacks a column that the job names.
    """

    def __init__(
        self,
        job: Job,
        place: str,
        storage_options: dict[str, str],
        partition: str,
        cutter: Cutter | None = None,
    ) -> None:
        self._warnings: list[str] = []
        self._chunks: list[SourceChunk] = []
        self._job = job
        self._place = place
        self._storage_options = storage_options
        self._partition = partition
        self._prompt = prompt_of(job, cutter)
        self._bodies = Bodies(job, self._prompt, cutter)
        source = job.declared.source
        self._id_column = source.id_column
        named = self._named_columns()
        try:
            self.delta = (
                DeltaTable(place, version=source.version, storage_options=storage_options)
                if source.table_format == "delta"
                else None
            )
            self._stamped = self._stamps()
            self._table = open_table(source.table_format, place, storage_options, self.delta)
            columns = self._table.columns(set[str]().union(*named.values()))
        except BROKEN as error:
            raise SourceError(
                f"The source table {place} cannot be read as {source.table_format}: "
                f"{first_line(error)}",
                "Correct source.table (and source.format or source.version) in the job's "
                "defs.yaml, or make the table.",
            ) from error
        if columns is not None:
            self._check_columns(named, columns)

    @property
    def warnings(self) -> list[str]:
        """See `Source.warnings`."""
        return self._warnings

    @property
    def chunks(self) -> list[SourceChunk]:
        """See `Source.chunks`; of the columns that the job reads."""
        return self._chunks

    def batches(self) -> Iterator[Batch]:
        """As `batch.Source` has it; about 16,384 rows or 64 MB of bodies at a time.

        Raises:
            SourceError: The table broke or was changed while it was read.
            ModelError: A row is to be cut by tokens, and the tokenizer is not there.
        """
        self._warnings.clear()
        self._bodies.forget()
        membership = self.membership()
        ids = RowIds(sorted(self._prompt.columns))
        first = 1
        chunks = RowChunks(self._place, self.wanted)
        for part in self._slices(membership):
            chunks.add(part)
            named = as_text(part.rows[self._id_column]) if self._id_column else ids.of(part.rows)
            yield from self._batches_of(part, first, named)
            first += part.height
        chunks.close()
        self._chunks = chunks.chunks
        if membership is not None:
            self._warnings += membership.warnings(self._place)
        self._warnings += self._bodies.warnings

    def batches_of(self, frames: Iterable[pl.DataFrame], first: int) -> Iterator[Batch]:
        """Batches of other rows of the table, numbered from `first`.

        Args:
            frames: Rows with the columns `wanted`, of a source with an id column.
            first: The number of the first row.

        Raises:
            ModelError: A row is to be cut by tokens, and the tokenizer is not there.
        """
        self._warnings.clear()
        self._bodies.forget()
        for rows in frames:
            part = Slice(rows, pl.int_range(rows.height, eager=True)).readable(self.id_column)
            yield from self._batches_of(part, first, as_text(part.rows[self.id_column]))
            first += rows.height
        self._warnings += self._bodies.warnings

    def changes_since(self, version: int) -> FileChanges:
        """What changed in the Delta table since an earlier version. Raises as `between` does."""
        assert self.delta is not None  # noqa: S101 - asked of Delta tables only
        return FileChanges.between(version, self.delta, self._place, self._storage_options)

    def fields(self, rows: int) -> tuple[pl.DataFrame, Fields] | None:
        """The columns that a simple prompt reads, of about the first so many rows.

        Returns:
            The columns in the prompt's order, as the prompt writes them, and the text around them;
            None if the prompt is not simple (see `Prompt.fields`).

        Raises:
            SourceError: The table broke or was changed while it was read.
        """
        fields = self._prompt.fields()
        if fields is None:
            return None
        written = [
            pl.col(name).cast(pl.String)
            if default is None
            else pl.col(name).cast(pl.String).fill_null(default)
            for name, default in zip(fields.columns, fields.defaults, strict=True)
        ]
        found: list[pl.DataFrame] = [pl.DataFrame(schema=dict.fromkeys(fields.columns, pl.String))]
        height = 0
        for part in self._slices(self.membership()):
            found.append(part.rows.select(written).drop_nulls())
            height += part.rows.height
            if height >= rows:
                break
        return pl.concat(found), fields

    @property
    def id_column(self) -> str:
        """The column that becomes the custom_id."""
        assert self._id_column is not None  # noqa: S101 - asked of tables that have one
        return self._id_column

    @property
    def model(self) -> str:
        """The model that the requests are for."""
        return self._job.declared.model

    def membership(self) -> Membership | None:
        """Tells the rows of the partition; None if all rows are."""
        column = self._job.declared.source.partition_column
        return None if column is None else Membership(self._job, column, self._partition)

    def _slices(self, membership: Membership | None) -> Iterator[Slice]:
        self._check_unchanged()
        try:
            for part in self._table.slices(self.wanted, membership):
                yield part.readable(self._id_column)
        except BROKEN as error:
            self._check_unchanged()
            raise SourceError(
                f"The source table {self._place} broke while it was read: {first_line(error)}",
                "Mend the table, then run the partition again; nothing was written.",
            ) from error
        self._check_unchanged()

    @property
    def wanted(self) -> list[str]:
        """The columns that are read."""
        ids = set[str]() if self._id_column is None else {self._id_column}
        return sorted(self._prompt.columns | ids)

    def _check_unchanged(self) -> None:
        if self._stamps() != self._stamped:
            raise SourceError(
                f"The source table {self._place} was changed while it was read.",
                "Run the partition again when nobody writes to the table; nothing was written.",
            )

    def _batches_of(self, part: Slice, first: int, ids: pl.Series) -> Iterator[Batch]:
        rejected = [
            Rejection.of(line.refused, self._place, first + line.number, line.original)
            for line in part.bad
        ]
        rows, lines = part.rows, part.places + first
        a_row = int(rows.estimated_size()) // max(rows.height, 1) + len(self._job.prompt or "") + 1
        step = max(_BATCH_BYTES // a_row, 1)
        for start in range(0, max(rows.height, 1), step):
            some = slice(start, start + step)
            yield self._batch(rows[some], lines[some], ids[some], rejected)
            rejected = []

    def _batch(
        self,
        rows: pl.DataFrame,
        lines: pl.Series,
        ids: pl.Series,
        bad_lines: list[Rejection],
    ) -> Batch:
        bodies, refusals = self._bodies.of(rows, ids)
        rejections = [
            Rejection.of(refused, self._place, lines[place], _original(rows, place))
            for place, refused in refusals.items()
        ]
        valid = bodies.is_not_null()
        requests = pl.DataFrame({"custom_id": ids, "body": bodies, "line": lines}).select(
            "custom_id",
            "body",
            "line",
            endpoint=pl.lit(CHAT),
            model=pl.lit(self._job.declared.model),
            source=pl.lit(self._place),
        )
        kept = rows.filter(valid)
        return Batch(
            requests.filter(valid).select(REQUEST.names()).cast(REQUEST),
            lambda place: (_original(kept, place), None),
            [*bad_lines, *rejections],
            chunked=self._job.declared.too_long.split is not None,
        )

    def _stamps(self) -> list[tuple[Path, int, int]]:
        """Size and time of change of each file; none for Delta, which is read as of one version."""
        return [] if self.delta is not None else stamps(self._place)

    def _named_columns(self) -> dict[str, set[str]]:
        """The columns that the job names, by the place that names them."""
        source, where = self._job.declared.source, self._job.folder / "defs.yaml"
        named = {
            f"{where}: source.id_column": source.id_column,
            f"{where}: source.partition_column": source.partition_column,
        }
        return {place: {name} for place, name in named.items() if name is not None} | {
            str(self._job.prompt_path): set(self._prompt.columns)
        }

    def _check_columns(self, named: dict[str, set[str]], columns: list[str]) -> None:
        for used_by, names in named.items():
            for name in sorted(names - set(columns)):
                near = difflib.get_close_matches(name, columns, n=1)
                raise SourceError(
                    f"{used_by} names the column {name!r}, which {self._place} does not have.",
                    (f"Did you mean {near[0]!r}? " if near else "")
                    + f"Its columns are: {', '.join(columns)}.",
                )
        if self._job.declared.source.make_ids and not self._prompt.columns:
            raise SourceError(
                f"{self._job.prompt_path} reads no column, so source.make_ids has nothing to make "
                "the ids of.",
                "Read a column in the prompt, or give source.id_column.",
            )


def _original(rows: pl.DataFrame, place: int) -> bytes:
    return next(rows_as_json(rows[place : place + 1]))
