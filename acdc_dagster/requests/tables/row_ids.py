"""Ids for the rows of a table that has none: what the row says, and the how-manieth it is."""

import hashlib

import polars as pl

from acdc_dagster.requests.tables.slices import rows_as_json

_DIGITS = 32


class RowIds:
    """Makes the custom_ids of one pass over a partition.

    An id is 32 hexadecimal digits of SHA-256 over the row's content as JSON, then `-` and 1 for the
    first row of that content in the partition, 2 for the second, and so on. It stays when other
    rows come, go or change places; among rows of equal content, one is as good as another.

    Args:
        columns: What counts as the row's content.
    """

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns
        self._seen: dict[str, int] = {}

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """The ids of the next rows."""
        ids: list[str] = []
        for content in rows_as_json(rows.select(self._columns)):
            digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
            number = self._seen.get(digest, 0) + 1
            self._seen[digest] = number
            ids.append(f"{digest}-{number}")
        return pl.Series(ids, dtype=pl.String)
