"""Rows of the source that are no valid request, as rows of `rejected`."""

from typing import NamedTuple

import polars as pl

from acdc_dagster.requests.refused import Refused
from acdc_dagster.schemas import row_schema

_EXCERPT = 200


class Rejection(NamedTuple):
    """One row of `rejected`, in the order of its columns."""

    source: str
    line: int
    custom_id: str | None
    code: str
    message: str
    input_rows: int
    byte_offset: int | None
    excerpt: str
    original: bytes

    @staticmethod
    def of(
        refused: Refused,
        source: str,
        line: int,
        original: bytes,
        input_rows: int = 1,
        byte_offset: int | None = None,
    ) -> "Rejection":
        """The row for what was refused; `original` is kept whole, as it stood in the source."""
        excerpt = original[: 4 * _EXCERPT].decode("utf-8", errors="backslashreplace")[:_EXCERPT]
        return Rejection(
            source,
            line,
            refused.custom_id,
            refused.code,
            refused.message,
            input_rows,
            byte_offset,
            excerpt,
            original,
        )


def rejected_rows(rejections: list[Rejection]) -> pl.DataFrame:
    """The rows for `rejected`, in source order."""
    rows = pl.DataFrame(rejections, schema=row_schema("rejected"), orient="row")
    return rows.sort("source", "line")
