"""Pieces of prompts as token ids, whether they are given as text or as ids."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.prefix.sequences import Sequences
from acdc_dagster.prefix.tokens.tokenizer import PromptTokenizer

Piece = str | NDArray[np.uint32]


def encoded(tokenizer: PromptTokenizer, pieces: Sequence[Piece], *, chat: bool) -> Sequences:
    """The token ids of each piece; those that are ids stay as they are.

    Args:
        tokenizer: For the texts.
        pieces: Texts, and ids below `tokenizer.ids`.
        chat: See `PromptTokenizer.encode`.

    Raises:
        DisagreementError: See `ModelTokenizer.encode`.
    """
    texts = [piece for piece in pieces if isinstance(piece, str)]
    found = tokenizer.encode(texts, chat=chat)
    given = [piece for piece in pieces if not isinstance(piece, str)]
    if not given:
        return found
    is_text = np.array([isinstance(piece, str) for piece in pieces])
    at = np.where(is_text, is_text.cumsum() - 1, len(texts) + (~is_text).cumsum() - 1)
    dtype = found.tokens.dtype
    return Sequences.concat([found, Sequences.of(given, dtype)], dtype).take(at)
