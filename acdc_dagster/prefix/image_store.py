"""The images of a job's requests, each once, on disk until the table `images` is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import polars as pl

from acdc_dagster.prefix.text.vision import Vision
from acdc_dagster.requests.images import Image
from acdc_dagster.schemas import row_schema
from acdc_dagster.spool import temporary_files

_FRAME_BYTES = 8 * 2**20


class _Place(NamedTuple):
    start: int
    size: int
    media_type: str
    width: int
    height: int
    tokens: int | None


class ImageStore:
    """Keeps the bytes of distinct images in a file that has no name, and where each lies.

    About 300 bytes of memory an image.

    Args:
        vision: How the model takes images; None if it takes none.
        count: Tells how many tokens a text with special tokens in it has.
    """

    def __init__(self, vision: Vision | None, count: Callable[[str], int]) -> None:
        self.vision = vision
        self._count = cache(count)
        self._places: dict[bytes, _Place] = {}
        self._file: Any = None
        self._end = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def bytes(self) -> int:
        """Bytes of all images."""
        return self._end

    def add(self, image: Image) -> int:
        """Keep an image.

        Returns:
            Tokens that it adds to a prompt beside its placeholder: at least, where only the engine
            can tell.

        Raises:
            SpaceError: There is no room for it.
        """
        least, tokens = self._tokens(image)
        if image.sha256 in self._places:
            return least
        with temporary_files():
            if self._file is None:
                self._file = TemporaryFile(prefix="acdc-images-")  # noqa: SIM115 - lives as this
            self._file.write(image.content)
        size = len(image.content)
        place = _Place(self._end, size, image.media_type, image.width, image.height, tokens)
        self._places[image.sha256] = place
        self._end += size
        return least

    def tokens(self, shown: pl.Series) -> pl.Series:
        """What each of some lists of hashes adds to its prompt; null where that is not known."""
        added: list[int | None] = []
        for hashes in shown:
            counts = [self._places[bytes.fromhex(sha256)].tokens for sha256 in hashes]
            known = [count for count in counts if count is not None]
            added.append(sum(known) if len(known) == len(counts) else None)
        return pl.Series(added, dtype=pl.Int32)

    def _tokens(self, image: Image) -> tuple[int, int | None]:
        """Tokens beside the placeholder: at least, and exactly if that is known."""
        if self.vision is None or self.vision.expanded is None:
            return 0, None
        lying = self._count(self.vision.expanded(image.width, image.height)) - 1
        if not image.may_be_turned:
            return lying, lying
        turned = self._count(self.vision.expanded(image.height, image.width)) - 1
        return min(lying, turned), lying if lying == turned else None

    def frames(self) -> Iterator[pl.DataFrame]:
        """Rows of `images`, without their partition, in the order of their hashes.

        Requests with the same text before their images come in that order too, so that a worker
        reads the table from its beginning to its end.

        Raises:
            SpaceError: There is no room for the last images; raised by the call itself.
        """
        if self._file is not None:
            with temporary_files():
                self._file.flush()
        return self._frames()

    def _frames(self) -> Iterator[pl.DataFrame]:
        rows: list[tuple[Any, ...]] = []
        held = 0
        for sha256, place in sorted(self._places.items()):
            self._file.seek(place.start)
            content = self._file.read(place.size)
            rows.append((sha256.hex(), place.media_type, content, place.width, place.height))
            held += place.size
            if held >= _FRAME_BYTES:
                yield _frame(rows)
                rows, held = [], 0
        if rows:
            yield _frame(rows)


def _frame(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=row_schema("images"), orient="row")


@dataclass(frozen=True)
class ImageStats:
    """What a partition's requests show.

    Attributes:
        shown: Images over all distinct requests: as often as an engine that remembers none encodes.
        distinct: Images that differ: as often as one does that remembers each while it is needed.
        bytes: Of the distinct ones.
        unknown: Distinct requests with images whose tokens only the engine can tell.
    """

    shown: int
    distinct: int
    bytes: int
    unknown: int

    @property
    def saved(self) -> float:
        """Share of encoder runs that repeat an image, in [0, 1)."""
        return 1 - self.distinct / self.shown if self.shown else 0.0

    @property
    def warnings(self) -> list[str]:
        """What is allowed but worth knowing."""
        if not self.unknown:
            return []
        show = "request shows" if self.unknown == 1 else "requests show"
        return [
            f"{self.unknown:,} {show} images of which only the engine can tell how many tokens "
            "they become. One that does not fit into the context fails there."
        ]
