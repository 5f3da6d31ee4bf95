"""Pieces of prompts as token ids: texts, token ids as a request gives them, and images."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.prefix.image_keys import ImageKeys
from acdc_dagster.prefix.sequences import Sequences
from acdc_dagster.prefix.tokens.tokenizer import PromptTokenizer

# A text, token ids, or the hash of an image.
Piece = str | NDArray[np.uint32] | bytes


def encoded(
    tokenizer: PromptTokenizer, keys: ImageKeys | None, pieces: Sequence[Piece], *, chat: bool
) -> Sequences:
    """The token ids of each piece; those that are ids stay as they are.

    Args:
        tokenizer: For the texts.
        keys: For the images; None if there is none.
        pieces: Ids among them are below `tokenizer.ids`.
        chat: See `PromptTokenizer.encode`.

    Raises:
        DisagreementError: See `ModelTokenizer.encode`.
    """
    texts = [piece for piece in pieces if isinstance(piece, str)]
    found = [tokenizer.encode(texts, chat=chat)]
    if len(texts) == len(pieces):
        return found[0]
    given = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    found.append(Sequences.of(given, found[0].tokens.dtype))
    if keys is not None:
        found.append(keys.encode([piece for piece in pieces if isinstance(piece, bytes)]))
    # Found by kind, they go back to their places.
    kinds = np.array([_kind(piece) for piece in pieces])
    places = np.empty(len(pieces), dtype=np.int64)
    places[np.argsort(kinds, kind="stable")] = np.arange(len(pieces))
    return Sequences.concat(found).take(places)


def _kind(piece: Piece) -> int:
    """Texts before ids before images, as they are encoded."""
    if isinstance(piece, str):
        return 0
    return 2 if isinstance(piece, bytes) else 1
