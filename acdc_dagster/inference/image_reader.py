"""The images of requests that are on their way to an engine, read from their table by hash."""

from collections.abc import Iterator

import polars as pl

from acdc_dagster.errors import IncompleteError
from acdc_dagster.inference.engines.protocol import Image
from acdc_dagster.tables import Tables

# Bytes that are kept for requests to come, and requests whose images are read in one query.
_KEPT_BYTES, _ROWS = 256 * 2**20, 32


class ImageReader:
    """Gives the images of requests in prefix order, in bounded memory.

    Requests that share an image are neighbours, and for requests with one text before their images
    the table is in their order, so that most of what is read is read once.

    Args:
        tables: The job's tables.
        partition: The partition key.
    """

    def __init__(self, tables: Tables, partition: str) -> None:
        self._tables = tables
        self._partition = partition
        self._kept: dict[str, Image] = {}  # the one used last at the end
        self._bytes = 0

    def of_rows(self, shown: pl.Series) -> Iterator[list[Image]]:
        """The images of each of some requests.

        Args:
            shown: Their lists of hashes; null, as in tables of an earlier version, is none.

        Raises:
            IncompleteError: An image is not in the table.
            TableError: The storage refused.
        """
        for start in range(0, len(shown), _ROWS):
            some = shown[start : start + _ROWS].to_list()
            found = self._of([sha256 for hashes in some for sha256 in hashes or ()])
            for hashes in some:
                yield [found[sha256] for sha256 in hashes or ()]

    def _of(self, hashes: list[str]) -> dict[str, Image]:
        missing = sorted({sha256 for sha256 in hashes if sha256 not in self._kept})
        if missing:
            self._read(missing)
        found = {sha256: self._kept[sha256] for sha256 in dict.fromkeys(hashes)}
        for sha256, image in found.items():
            del self._kept[sha256]
            self._kept[sha256] = image
        while self._bytes > _KEPT_BYTES:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= len(oldest.content)
        return found

    def _read(self, missing: list[str]) -> None:
        rows = self._tables.collect(
            self._tables.scan("images", self._partition)
            .filter(
                # A range is told from the files' statistics: row groups without are not read.
                pl.col("sha256").is_between(pl.lit(missing[0]), pl.lit(missing[-1])),
                pl.col("sha256").is_in(missing),
            )
            .select("sha256", "content")
        )
        if rows.height < len(missing):
            raise IncompleteError(
                f"{len(missing) - rows.height} images that requests of partition "
                f"{self._partition!r} show are not in {self._tables.uri('images')}.",
                f"Materialise {self._tables.job}/sorted_requests and what follows it for this "
                "partition.",
            )
        for sha256, content in rows.iter_rows():
            self._kept[sha256] = Image(sha256, content)
            self._bytes += len(content)
