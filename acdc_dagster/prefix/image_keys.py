"""Images in the order of prompts: as keys of token ids that no vocabulary has.

Before the token in whose place an image comes stands the image's key, while prompts are sorted: a
mark, and the bytes of its hash. So prompts are in the order of (text before the image, hash), equal
ones have equal images, and two prompts share nothing from the first image on in which they differ.
The keys are taken out of what is handed on.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.prefix.runs import Sorted
from acdc_dagster.prefix.sequences import Sequences, narrowest, starts_of

_HASH = 32
KEY = 1 + _HASH  # ids of a key


class ImageKeys:
    """The keys for one tokenizer.

    Args:
        vocabulary: All ids of its own are below this.

    Attributes:
        mark: The id that begins a key; prompts are cut before it, as before special tokens.
        ids: All ids, those of keys too, are below this.
    """

    def __init__(self, vocabulary: int) -> None:
        self.mark = vocabulary
        self.ids = vocabulary + 1 + 256
        self._own = narrowest(vocabulary)

    def encode(self, hashes: list[bytes]) -> Sequences:
        """The key of each hash."""
        values = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, _HASH)
        keys = np.full((len(values), KEY), self.mark, dtype=narrowest(self.ids))
        keys[:, 1:] = values.astype(keys.dtype) + (self.mark + 1)
        return Sequences(keys.ravel(), starts_of(np.full(len(keys), KEY, dtype=np.int64)))

    def taken_out(self, frame: Sorted) -> Sorted:
        """The prompts as the engine gets them, with the hashes of their images beside them."""
        tokens, offsets = frame.tokens.tokens, frame.tokens.offsets
        is_key = tokens >= self.mark
        before = starts_of(is_key.astype(np.int64))
        marks = np.flatnonzero(tokens == self.mark)
        places = marks[:, None] + np.arange(1, KEY)
        hashes = (tokens[places] - (self.mark + 1)).astype(np.uint8)
        starts = offsets[:-1]
        return replace(
            frame,
            tokens=Sequences(tokens[~is_key].astype(self._own), offsets - before[offsets]),
            lcp=frame.lcp - (before[starts + frame.lcp] - before[starts]),
            images=_lists(hashes, np.searchsorted(marks, offsets)),
        )


def _lists(hashes: NDArray[np.uint8], offsets: NDArray[np.intp]) -> pl.Series:
    """The hashes in hexadecimal digits, as the lists that begin and end at `offsets`."""
    texts = pl.Series([row.tobytes().hex() for row in hashes], dtype=pl.String)
    edges: list[int] = offsets.tolist()
    lists = [texts[a:b] for a, b in pairwise(edges)]
    return pl.Series(lists, dtype=pl.List(pl.String))
