"""The rows that stood in the files which a Delta table lost, and those in the files it gained.

Every change of a Delta table takes files away and adds others, whole; a file that stays holds the
rows that it held before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from polars.exceptions import PolarsError
from pyarrow.dataset import FileSystemDataset

from acdc_dagster.requests.tables.formats import first_line
from acdc_dagster.requests.tables.membership import Membership
from acdc_dagster.requests.tables.slices import ROWS


class UnclearError(Exception):
    """What changed cannot be told from the files; the text says why. Read the table in full."""


@dataclass(frozen=True)
class FileChanges:
    """The files that a table has at one version only.

    Attributes:
        removed: Of the earlier version.
        added: Of the later one.
        schema: The table's columns, as its full read gives them.
    """

    removed: Any
    added: Any
    schema: pl.Schema

    @staticmethod
    def between(
        version: int, now: DeltaTable, place: str, storage_options: dict[str, str]
    ) -> "FileChanges":
        """What changed from `version` to the version of `now`.

        Raises:
            UnclearError: The log of `version` is gone, the table has other columns than then, or
                deletes rows without replacing their file (deletion vectors).
        """
        if version > now.version():
            raise UnclearError(f"the table went back from version {version} to {now.version()}")
        try:
            then = DeltaTable(place, version=version, storage_options=storage_options)
            if then.schema().to_json() != now.schema().to_json():
                raise UnclearError(f"its columns changed since version {version}")
            before = _files(then)
            after = _files(now)
        except DeltaError as error:
            raise UnclearError(first_line(error)) from error
        return FileChanges(
            _only(before, {*before} - {*after}, then),
            _only(after, {*after} - {*before}, now),
            pl.scan_delta(now).collect_schema(),
        )

    def rows(
        self, files: Any, columns: list[str], membership: Membership | None
    ) -> Iterator[pl.DataFrame]:
        """Those columns of the rows of one partition in the removed or added files.

        Raises:
            UnclearError: A file is gone, as VACUUM deletes what was removed.
        """
        if files is None:
            return
        read = columns if membership is None else sorted({*columns, membership.column})
        schema = pl.Schema({name: self.schema[name] for name in read})
        try:
            for batch in files.to_batches(columns=read, batch_size=ROWS):
                rows = pl.DataFrame(batch).cast(schema)
                if membership is not None:
                    rows = membership.scan(rows.lazy()).collect()
                if rows.height:
                    yield rows.select(columns)
        except (OSError, DeltaError, PolarsError, pa.ArrowException) as error:
            raise UnclearError(first_line(error)) from error


def _files(table: DeltaTable) -> dict[str, Any]:
    dataset = cast("Any", table).to_pyarrow_dataset(as_large_types=True)
    return {fragment.path: fragment for fragment in dataset.get_fragments()}


def _only(files: dict[str, Any], wanted: set[str], table: DeltaTable) -> Any:
    """A dataset of some of a table's files; None for no file."""
    if not wanted:
        return None
    some = [files[path] for path in sorted(wanted)]
    schema = pa.schema(cast("Any", table.schema().to_arrow(as_large_types=True)))
    return FileSystemDataset(some, schema, some[0].format, some[0].filesystem)
