"""Image requests in the order: which are neighbours, what they share, what makes two the same."""

import hashlib
import json
import random
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from support import sorted_prompts
from vision_model import image_part, make_vision_folder, png, showing, text_part

from acdc_dagster.models import Model, found_model
from acdc_dagster.prefix.image_keys import ImageKeys
from acdc_dagster.prefix.runs import Sorted
from acdc_dagster.prefix.sequences import Sequences
from acdc_dagster.prefix.sorter import Sorter, hex_of
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.body import CHAT

PLACE = 259  # the id of <image>


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A multimodal model as far as preparation sees it."""
    folder = make_vision_folder(tmp_path_factory.mktemp("vision"))
    return found_model("m", folder, None, "the test")


def in_order(
    model: Model, bodies: list[dict[str, Any]], memory: int = 2**30
) -> tuple[pl.DataFrame, Sorter]:
    """A row for each distinct request in prefix order, and the sorter."""
    sorter = Sorter(ModelTokenizer(model.path), ChatTemplate(model.path), model, {}, "p", memory)
    raw = pl.DataFrame(
        {
            "custom_id": [str(at) for at in range(len(bodies))],
            "endpoint": [CHAT] * len(bodies),
            "body": [json.dumps(body) for body in bodies],
            "source": ["f"] * len(bodies),
            "line": list(range(len(bodies))),
            "input_rows": [1] * len(bodies),
        }
    )
    for part in raw.iter_slices(7):
        sorter.add(part)
    frames = [
        pl.DataFrame(
            {
                "hash": hex_of(frame.hashes),
                "tokens": [frame.tokens[at].tolist() for at in range(len(frame.tokens))],
                "lcp": frame.lcp,
                "images": frame.images,
            }
        )
        for frame in sorter.sorted()
    ]
    return pl.concat(frames), sorter


def key(tokens: list[int], images: list[str]) -> list[Any]:
    """What a prompt is compared by, written out: text, and an image before its place."""
    left = iter(images)
    found: list[Any] = []
    for token in tokens:
        found += [f"{next(left)}", f"{token:08}"] if token == PLACE else [f"{token:08}"]
    return found


def shared(one: list[Any], other: list[Any]) -> int:
    """Tokens that two prompts share: hashes are no tokens."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += len(a) == 8
    return count


def some_bodies(seed: int) -> list[dict[str, Any]]:
    """Requests with none, one or two of a few images, and of a few texts."""
    dice = random.Random(seed)
    bodies: list[dict[str, Any]] = []
    for _ in range(60):
        parts: list[dict[str, Any]] = []
        for _ in range(dice.randint(0, 2)):
            parts += [
                text_part(dice.choice(["What?", "Where", ""])),
                image_part(png(dice.randint(1, 5))),
            ]
        parts.append(text_part(dice.choice(["now", "then", "nowhere"])))
        bodies.append(showing(*parts))
    return bodies


@pytest.mark.parametrize("memory", [2**30, 5_000], ids=["in memory", "spilled"])
@pytest.mark.parametrize("seed", [0, 1])
def test_requests_that_share_an_image_are_neighbours(model: Model, seed: int, memory: int) -> None:
    """The LCP with the request before is that of text and images; none shares more elsewhere."""
    rows, sorter = in_order(model, some_bodies(seed), memory)
    assert (sorter.spilled_bytes > 0) == (memory < 2**30)
    keys = [key(*row) for row in rows.select("tokens", "images").iter_rows()]
    assert rows["lcp"].to_list() == [0, *(shared(*pair) for pair in pairwise(keys))]
    for at, one in enumerate(keys):
        # What an earlier request shares is shared by all between: so it is a depth-first order.
        for before in range(at):
            least = rows["lcp"][before + 1 : at + 1].min()
            assert shared(keys[before], one) == least
    assert len({tuple(one) for one in keys}) == len(keys) == sorter.distinct


def test_the_order_is_text_then_hash(model: Model) -> None:
    """With one text before the images, requests come in the order of the images' hashes."""
    bodies = [showing(text_part("What?"), image_part(png(red))) for red in range(20)]
    rows, _ = in_order(model, bodies)
    hashes = [hashlib.sha256(png(red)).hexdigest() for red in range(20)]
    assert rows["images"].to_list() == [[name] for name in sorted(hashes)]


def test_the_image_makes_the_request(model: Model) -> None:
    """The same text with another image is another request; with the same one it is the same.

    The hash is the same in another job with other images.
    """
    one, other = (showing(text_part("What?"), image_part(png(red))) for red in (1, 2))
    rows, sorter = in_order(model, [one, other, one])
    assert (sorter.requests, sorter.distinct) == (3, 2)
    again, _ = in_order(model, [showing(image_part(png(9))), other])
    assert len(set(rows["hash"]) & set(again["hash"])) == 1
    text, _ = in_order(model, [showing(text_part("What?"))])
    assert not set(rows["hash"]) & set(text["hash"])


def test_keys_stay_out_of_what_is_handed_on() -> None:
    """Tokens have the vocabulary's own width, and lengths and LCPs are without the keys."""
    keys = ImageKeys(2**16 - 10)
    one, other = (keys.encode([bytes([5, last] * 16)])[0].tolist() for last in (1, 2))
    prompts = [[7], [7, *one, PLACE, 8], [7, *one, PLACE, 9, *other, PLACE], [7, *other, PLACE]]
    frame = Sorted(
        Sequences.of(prompts),
        np.array([0, 1, 35, 3]),  # the last two share a mark and a byte of their hashes
        np.zeros(4, dtype=(np.void, 16)),
        [""] * 4,
    )
    found = keys.taken_out(frame)
    assert found.tokens.tokens.dtype == np.uint16
    assert [found.tokens[at].tolist() for at in range(4)] == [
        [7],
        [7, PLACE, 8],
        [7, PLACE, 9, PLACE],
        [7, PLACE],
    ]
    assert found.lcp.tolist() == [0, 1, 2, 1]
    first, second = "0501" * 16, "0502" * 16
    assert found.images is not None
    assert found.images.to_list() == [[], [first], [first, second], [second]]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([text_part("an <image> here")], "2 places"),
        ([image_part(png(2)), text_part("<image>")], "3 places"),
    ],
)
def test_a_text_cannot_pose_as_an_image(
    model: Model, parts: list[dict[str, Any]], said: str
) -> None:
    """A text with the placeholder in it would put an image into the wrong place."""
    sorter, ids = sorted_prompts(model, CHAT, [showing(image_part(png(1)), *parts)])
    assert ids == [None]
    (rejection,) = sorter.refused
    assert rejection.code == "unsupported_content"
    assert said in rejection.message
