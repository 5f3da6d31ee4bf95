"""Rows on their way into `raw_requests`: what one row cannot tell is judged over all of them.

The source is read once, and rows are handed on as they come. Only if a custom_id stands in it twice
is it read again, now with the knowledge of which.
"""

from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.requests.batch import REQUEST, Batch, Source
from acdc_dagster.requests.prompts.chunks import by_chunk
from acdc_dagster.requests.refused import Refused, shortened
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.spool import temporary_files

_COLUMNS_OF_ROWS = [*REQUEST.names(), "input_rows"]
# Lines that a message names.
_SHOWN = 5


class RepeatedIdsError(Exception):
    """A custom_id stands in the source more than once: read it again."""


class Intake:
    """One partition of a source on its way into `raw_requests`.

    Args:
        source: Where the rows come from.
        model: The model that each request must name; the first one's if None.

    Attributes:
        input_rows: Rows seen; equals the sum of `input_rows` over requests and rejections when
            all are taken.
        requests: Requests given; more than rows if texts are split.
        rejections: The rows that are no valid request.
        warnings: What is allowed but worth knowing.
    """

    def __init__(self, source: Source, model: str | None) -> None:
        self._source = source
        self._model = model
        self._repeated: pl.DataFrame | None = None
        self._begin()

    def _begin(self) -> None:
        self.input_rows = 0
        self.requests = 0
        self.rejections: list[Rejection] = []
        self.warnings: list[str] = []
        self._once: list[tuple[str, str]] = []
        self._endpoint: str | None = None
        self._wanted = self._model

    def frames(self) -> Iterator[pl.DataFrame]:
        """Rows of `raw_requests`, without their partition and prompt version.

        Raises:
            RepeatedIdsError: All that was given is void; take the frames again.
            SourceError: The source broke.
            SpaceError: There is no room for temporary files.
        """
        self._begin()
        ids = _Ids()
        for batch in self._source.batches():
            self.input_rows += batch.input_rows
            self.rejections.extend(batch.rejections)
            rows = batch.requests.with_row_index("at")
            if rows.is_empty():
                continue
            rows = self._of_one_kind(rows, batch)
            if self._repeated is None:
                ids.add(rows)
                rows = rows.with_columns(input_rows=pl.lit(1, pl.Int64))
            else:
                rows = self._once_each(rows, batch, self._repeated)
            rows = rows.select(_COLUMNS_OF_ROWS)
            if batch.chunked:
                rows = by_chunk(rows)
            self.requests += rows.height
            yield rows
        if self._repeated is None:
            repeated = ids.repeated()
            if repeated.height:
                self._repeated = repeated
                raise RepeatedIdsError
        self._warn()

    def _of_one_kind(self, rows: pl.DataFrame, batch: Batch) -> pl.DataFrame:
        """The rows of the first one's endpoint and of the wanted model."""
        if self._endpoint is None:
            self._endpoint = str(rows["endpoint"][0])
        rows = self._like(
            rows,
            "endpoint",
            self._endpoint,
            "url_mismatch",
            "url {} differs from the batch's, {}; put it into a file of its own.",
            batch,
        )
        if rows.is_empty():
            return rows
        if self._wanted is None:
            self._wanted = str(rows["model"][0])
        return self._like(
            rows,
            "model",
            self._wanted,
            "model_mismatch",
            "model {} differs from the job's, {}; put it into a job of its own.",
            batch,
        )

    def _like(
        self, rows: pl.DataFrame, column: str, wanted: str, code: str, message: str, batch: Batch
    ) -> pl.DataFrame:
        """The rows that have the wanted value; the others are set aside."""
        same = rows[column] == wanted
        if same.all():
            return rows
        text = pl.format(message, pl.col(column), pl.lit(wanted))
        self._set_aside(rows.filter(~same), code, text, batch)
        return rows.filter(same)

    def _once_each(self, rows: pl.DataFrame, batch: Batch, repeated: pl.DataFrame) -> pl.DataFrame:
        """The rows whose custom_id stands nowhere else, or first where all bodies are equal."""
        rows = rows.with_columns(**_id_hash(rows)).join(
            repeated, on=["id_a", "id_b"], how="left", maintain_order="left"
        )
        self._set_aside(
            rows.filter(pl.col("bodies") > 1),
            "duplicate_custom_id",
            pl.format(
                "custom_id {} stands on lines {} with different bodies, so no answer could be "
                "told from another; give each its own id.",
                "custom_id",
                "lines",
            ),
            batch,
        )
        again = pl.col("rows").is_not_null()
        first = (pl.col("source") == pl.col("first_source")) & (
            pl.col("line") == pl.col("first_line")
        )
        kept = rows.filter(~again | ((pl.col("bodies") == 1) & first))
        self._once.extend(kept.filter(again).select("custom_id", "lines").iter_rows())
        return kept.with_columns(input_rows=pl.coalesce("rows", pl.lit(1)).cast(pl.Int64))

    def _set_aside(self, bad: pl.DataFrame, code: str, message: pl.Expr, batch: Batch) -> None:
        for row in bad.with_columns(message=message).iter_rows(named=True):
            refused = Refused(code, row["message"], row["custom_id"])
            original, offset = batch.original(row["at"])
            self.rejections.append(
                Rejection.of(refused, row["source"], row["line"], original, byte_offset=offset)
            )

    def _warn(self) -> None:
        self.warnings.extend(self._source.warnings)
        self.warnings.extend(
            shortened(
                f"custom_id {custom_id!r} stands on lines {lines} with the same body; it is "
                "answered once."
            )
            for custom_id, lines in self._once[:_SHOWN]
        )
        more = len(self._once) - _SHOWN
        if more > 0:
            self.warnings.append(f"{more} more custom_ids are repeated with the same body.")


def _id_hash(rows: pl.DataFrame) -> dict[str, pl.Series]:
    """Two hashes of the custom_id, 128 bits together: equal ones are taken for the same id."""
    ids = rows["custom_id"]
    return {"id_a": ids.hash(seed=1), "id_b": ids.hash(seed=2)}


# Rows whose ids are compared in memory, and the parts that more are split into on disk.
_HELD, _PARTS = 2**21, 32
_COLUMNS = ("id_a", "id_b", "body", "source", "line")


class _Ids:
    """Which custom_ids come more than once, over any number of rows, in bounded memory."""

    def __init__(self) -> None:
        self._held: list[NDArray[np.uint64]] = []
        self._rows = 0
        self._parts: list[IO[bytes]] = []
        self._sources: dict[str, int] = {}

    def add(self, rows: pl.DataFrame) -> None:
        for source in rows["source"].unique(maintain_order=True):
            self._sources.setdefault(source, len(self._sources))
        numbers = rows["source"].replace_strict(self._sources, return_dtype=pl.UInt64)
        columns: list[Any] = [
            *_id_hash(rows).values(),
            rows["body"].hash(),
            numbers,
            rows["line"].cast(pl.UInt64),
        ]
        self._held.append(np.column_stack([column.to_numpy() for column in columns]))
        self._rows += rows.height
        if self._rows > _HELD:
            self._spill()

    def repeated(self) -> pl.DataFrame:
        """A row for each custom_id that comes more than once.

        Columns: id_a and id_b (its hash), rows (how often), bodies (how many differ), lines (the
        first few, as text), first_source and first_line.
        """
        if not self._parts:
            return self._repeated(self._joined())
        self._spill()
        found: list[pl.DataFrame] = []
        for part in self._parts:
            part.seek(0)
            rows = np.frombuffer(part.read(), dtype=np.uint64).reshape(-1, len(_COLUMNS))
            part.close()
            found.append(self._repeated(rows))
        return pl.concat(found)

    def _joined(self) -> NDArray[np.uint64]:
        empty = np.empty((0, len(_COLUMNS)), dtype=np.uint64)
        return np.concatenate([empty, *self._held])

    def _spill(self) -> None:
        with temporary_files():
            if not self._parts:
                self._parts = [TemporaryFile(prefix="acdc-ids-") for _ in range(_PARTS)]  # noqa: SIM115
            rows = self._joined()
            bits = 64 - (_PARTS - 1).bit_length()
            part_of = (rows[:, 0] >> np.uint64(bits)).astype(np.int64)
            for number, part in enumerate(self._parts):
                part.write(rows[part_of == number].tobytes())
                part.flush()
        self._held, self._rows = [], 0

    def _repeated(self, rows: NDArray[np.uint64]) -> pl.DataFrame:
        names = pl.DataFrame(
            {"name": list(self._sources), "source": list(self._sources.values())},
            schema={"name": pl.String, "source": pl.UInt64},
        )
        return (
            pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.UInt64))
            .filter(pl.struct("id_a", "id_b").is_duplicated())
            .sort("source", "line")
            .join(names, on="source", how="left", maintain_order="left")
            .with_columns(pl.col("line").cast(pl.Int64))
            .group_by("id_a", "id_b")
            .agg(
                rows=pl.len(),
                bodies=pl.col("body").n_unique(),
                lines=pl.when(pl.col("name").n_unique() > 1)
                .then(pl.format("{}:{}", "name", "line").head(_SHOWN).str.join(", "))
                .otherwise(pl.col("line").cast(pl.String).head(_SHOWN).str.join(", ")),
                first_source=pl.col("name").first(),
                first_line=pl.col("line").first(),
            )
        )
