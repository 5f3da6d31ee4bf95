"""Rows of `sorted_requests`, and so of `retries`: what the sorter gives, as columns."""

import json

import numpy as np
import polars as pl

from acdc_dagster.prefix.image_store import ImageStore
from acdc_dagster.prefix.runs import Sorted
from acdc_dagster.prefix.sorter import hex_of


def sorted_rows(frame: Sorted, first: int, images: ImageStore) -> pl.DataFrame:
    """Rows of `sorted_requests`, without their partition.

    Args:
        frame: The requests.
        first: The position of the first.
        images: What they show.
    """
    count = len(frame.lcp)
    shown = frame.images
    if shown is None:
        shown = pl.Series([[]], dtype=pl.List(pl.String)).new_from_index(0, count)
        added = pl.Series([0], dtype=pl.Int32).new_from_index(0, count)
    else:
        added = images.tokens(shown)
    return pl.DataFrame(
        {
            "position": np.arange(first, first + count, dtype=np.int64),
            "request_hash": hex_of(frame.hashes),
            "token_ids": frame.tokens.as_binary(),
            "prompt_tokens": frame.tokens.lengths,
            "lcp": frame.lcp,
            "max_tokens": _max_tokens(frame.sampling),
            "sampling": frame.sampling,
            "images": shown,
            "image_tokens": added,
        }
    )


def _max_tokens(sampling: list[str]) -> pl.Series:
    """What `identity.Settings.sampling` puts first; most rows have the same."""
    distinct = dict.fromkeys(sampling)
    asked = {text: json.loads(text)["max_tokens"] for text in distinct}
    return pl.Series([asked[text] for text in sampling], dtype=pl.Int32)
