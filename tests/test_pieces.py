"""Pieces of prompts as token ids, in their places: texts, given ids, and images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import sorted_prompts

from acdc_dagster.models import Model
from acdc_dagster.prefix.image_keys import KEY, ImageKeys
from acdc_dagster.prefix.pieces import Piece, encoded
from acdc_dagster.prefix.tokens.tokenizer import ByteEstimate, ModelTokenizer
from acdc_dagster.requests.body import COMPLETIONS, EMBEDDINGS


@pytest.fixture
def model(model_path: Path) -> Model:
    return Model("m", model_path, "r", 64)


def test_pieces_keep_their_places(model_path: Path) -> None:
    """Text, ids, ids, text; or nothing, or ids alone."""
    tokenizer = ModelTokenizer(model_path)
    ids = [np.array(some, dtype=np.uint32) for some in ([5, 49151], [7])]
    pieces: list[Piece] = ["A plum", ids[0], ids[1], "A pear", ""]
    found = encoded(tokenizer, None, pieces, chat=False)
    texts = [tokenizer.encode([text], chat=False)[0].tolist() for text in ("A plum", "A pear")]
    assert [found[at].tolist() for at in range(5)] == [texts[0], [5, 49151], [7], texts[1], []]
    assert found.tokens.dtype == np.uint16
    assert len(encoded(tokenizer, None, [], chat=False)) == 0
    assert encoded(ByteEstimate(), None, ids, chat=False)[1].tolist() == [7]


def test_images_stand_between_texts_and_ids(model_path: Path) -> None:
    """Each image by its key, which begins with a mark that no text has."""
    tokenizer = ModelTokenizer(model_path)
    keys = ImageKeys(tokenizer.ids)
    image = bytes(range(KEY - 1))
    found = encoded(
        tokenizer, keys, [image, "A plum", np.array([5], np.uint32), image, ""], chat=True
    )
    assert [len(found[at]) for at in (0, 2, 3, 4)] == [KEY, 1, KEY, 0]
    assert found[0].tolist() == [keys.mark, *(keys.mark + 1 + byte for byte in image)]
    assert found[1].tolist() == tokenizer.encode(["A plum"], chat=True)[0].tolist()
    assert found[2].tolist() == [5]


@pytest.mark.parametrize(("endpoint", "field"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
@pytest.mark.parametrize("memory", [2**30, 1])
def test_a_prompt_is_the_same_as_text_and_as_its_ids(
    model: Model, endpoint: str, field: str, memory: int
) -> None:
    """It is one request, computed once; also where all is sorted in temporary files."""
    plum = ModelTokenizer(model.path).encode(["A plum is a"], chat=False)[0].tolist()
    prompts: list[Any] = ["A plum is a", plum, plum[:2], plum, "A pear", [*plum, 0, 5]]
    greedy = {"temperature": 0} if endpoint == COMPLETIONS else {}
    bodies = [{"model": "m", field: prompt, **greedy} for prompt in prompts]
    sorter, made = sorted_prompts(model, endpoint, bodies, memory)
    pear = ModelTokenizer(model.path).encode(["A pear"], chat=False)[0].tolist()
    assert made == [plum, plum, plum[:2], plum, pear, [*plum, 0, 5]]
    assert sorter.distinct == 4


def test_ids_that_the_model_does_not_have_or_cannot_hold_are_refused(model: Model) -> None:
    """By the model's own limits; neighbours run."""
    ids = ModelTokenizer(model.path).ids
    prompts = [[1, ids], [1, ids - 1], [1] * 64, [1] * 63]
    bodies = [{"model": "m", "prompt": prompt} for prompt in prompts]
    sorter, made = sorted_prompts(model, COMPLETIONS, bodies)
    assert made == [None, prompts[1], None, prompts[3]]
    unknown, long = sorter.refused
    assert (unknown.code, unknown.line) == ("invalid_value", 1)
    assert f"token id {ids}" in unknown.message
    assert (long.code, long.line) == ("context_length_exceeded", 3)
