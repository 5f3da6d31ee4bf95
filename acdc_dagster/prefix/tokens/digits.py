"""Tokenizers that take each digit by itself, in a form at which the fast library is fast.

Models like SmolLM2 cut their texts in two steps: around each digit, then into the words of GPT-2.
fastokens finds GPT-2's words quickly, but only where that is the one step. The first step can
mostly be left out: GPT-2's words end before a digit anyway, and a number is taken apart again if
the vocabulary joins no digit to anything. What is left is told by `_ODD`: two blanks before a digit
are one word in two steps and two words in one; and a digit that is not ASCII is of several bytes,
which may be joined to those beside them. Such a text is cut around its digits here.
"""

import re
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from acdc_dagster.prefix.sequences import starts_of

_ODD = r"\s\s\p{N}|[\p{N}--[0-9]]"
_AROUND_DIGITS = r"\p{N}|\P{N}+"
_DIGIT = re.compile("[0-9]")


def without_digit_step(description: dict[str, Any]) -> dict[str, Any] | None:
    """The same tokenizer without its step that isolates digits, for `DigitsApart`.

    Args:
        description: The content of a tokenizer.json.

    Returns:
        None if it has no such step, or cannot do without.
    """
    match description:
        case {
            "normalizer": None,
            "post_processor": None | {"type": "ByteLevel"},
            "pre_tokenizer": {
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True} as words,
                ]
            },
            "model": {"type": "BPE", "vocab": vocabulary},
            "added_tokens": added,
        }:
            joined = "".join(token for token in vocabulary if len(token) > 1)
            special = "".join(str(token["content"]) for token in added)
            if _DIGIT.search(joined) or any(map(str.isnumeric, special)):
                return None
            return {**description, "pre_tokenizer": words}
        case _:
            return None


class DigitsApart:
    """A fast tokenizer of a description that `without_digit_step` gave.

    Args:
        fast: The tokenizer, of fastokens.
    """

    def __init__(self, fast: Any) -> None:
        self._fast = fast

    def encode_batch_flat(
        self, texts: list[str], *, add_special_tokens: bool
    ) -> tuple[bytes, bytes]:
        """Ids of all texts end to end as bytes of uint32, and where each starts, of uint64."""
        column = pl.Series(texts, dtype=pl.String)
        odd = column.str.contains(_ODD).arg_true()
        if odd.is_empty():
            return self._fast.encode_batch_flat(texts, add_special_tokens=add_special_tokens)
        pieces = [[text] for text in texts]
        for at, cut in zip(odd, column.gather(odd).str.extract_all(_AROUND_DIGITS), strict=True):
            pieces[at] = cut.to_list()
        ids, offsets = self._fast.encode_batch_flat(
            list(chain.from_iterable(pieces)), add_special_tokens=add_special_tokens
        )
        starts = starts_of(np.fromiter(map(len, pieces), np.int64, len(pieces)))
        return ids, np.frombuffer(offsets, dtype="<u8")[starts].tobytes()
