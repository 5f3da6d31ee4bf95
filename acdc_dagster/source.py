"""Where a job's rows come from, as its user declares it."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from acdc_dagster.declared import Declared

TableFormat = Literal["delta", "parquet", "csv", "ndjson"]

_OF_A_TABLE = (
    "format",
    "version",
    "id_column",
    "make_ids",
    "partition_column",
    "incremental",
)
_FORMATS: dict[str, TableFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}


class Source(Declared):
    """Where the rows come from: a table, or batch JSONL files."""

    table: str | None = Field(
        default=None,
        description="Delta folder, or file of Parquet, CSV or NDJSON: path, glob or URI; relative "
        "to the deployment.",
    )
    format: TableFormat | None = Field(
        default=None,
        description="Told from the name if not given: .parquet, .csv, .ndjson or .jsonl (.gz too "
        "for the text formats), else Delta.",
    )
    version: int | None = Field(
        default=None, ge=0, description="Version of a Delta table to read; the newest if not given."
    )
    id_column: str | None = Field(
        default=None, description="Column whose value becomes the custom_id; unique in a partition."
    )
    make_ids: bool = Field(
        default=False,
        description="Make the custom_id from what the prompt reads of the row; for tables without "
        "an id_column.",
    )
    partition_column: str | None = Field(
        default=None, description="Column compared with the partition key; all rows if not given."
    )
    incremental: bool = Field(
        default=False,
        description="Read only the files of a Delta table that changed since the last run.",
    )
    requests: str | None = Field(
        default=None,
        description="Batch JSONL files of OpenAI, Anthropic or Gemini, packed or not: path, glob "
        "or URI; {partition} stands for the key.",
    )
    asset: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*$",
        description="The Dagster asset that makes the source, if one does, as shop/products.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.table is None) == (self.requests is None):
            raise ValueError("give exactly one of: table, requests")
        if self.table is None:
            unused = [name for name in _OF_A_TABLE if getattr(self, name) not in (None, False)]
            if unused:
                raise ValueError(f"{', '.join(unused)} belong to a table, not to requests")
            return self
        if self.id_column is None and not self.make_ids:
            raise ValueError(
                "a table needs id_column, the column that becomes the custom_id, or make_ids: true"
            )
        if self.id_column is not None and self.make_ids:
            raise ValueError("give one of: id_column, make_ids")
        if self.incremental:
            self._check_incremental()
        if self.version is not None and self.table_format != "delta":
            raise ValueError(f"version belongs to a Delta table, not to {self.table_format}")
        return self

    def _check_incremental(self) -> None:
        if self.table_format != "delta":
            raise ValueError(f"incremental needs a Delta table, and this is {self.table_format}")
        if self.id_column is None:
            raise ValueError("incremental needs id_column, by which a row that changed is known")
        if self.version is not None:
            raise ValueError("incremental reads the newest version; leave version out")
        if "{partition}" in (self.table or ""):
            raise ValueError(
                "incremental needs one table for all partitions: use partition_column instead of "
                "{partition}"
            )

    @property
    def table_format(self) -> TableFormat:
        """The declared format, else the one that the table's name tells."""
        if self.format is not None:
            return self.format
        name = Path(self.table or "").name.lower().removesuffix(".gz")
        return _FORMATS.get(Path(name).suffix, "delta")
