"""Image requests as `vllm serve` renders them: the text, the places, and what an image becomes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import ours, serving
from vision_model import TEMPLATE, image_part, make_vision_folder, png, showing, text_part

from acdc_dagster.prefix.text.vision import Vision
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.body import CHAT

ONE_TEXT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<end_of_utterance>\n"
    "{% endfor %}Assistant:"
)
SIZES = [(40, 24), (64, 64), (1, 1), (64, 3), (3, 64), (300, 200), (65, 31), (90, 1)]
Serve = Callable[[str, dict[str, Any]], list[int] | None]


def expanded(folder: Path, ids: list[int] | None, sizes: list[tuple[int, int]]) -> list[int]:
    """Our ids with what each image becomes in its place, as the engine puts it there."""
    assert ids is not None
    vision = Vision.of(folder)
    assert vision is not None
    assert vision.expanded is not None
    tokenizer = ModelTokenizer(folder)
    place = tokenizer.cuts[vision.token]
    left = iter(sizes)
    found: list[int] = []
    for token in ids:
        if token == place:
            found += tokenizer.encode([vision.expanded(*next(left))], chat=True)[0].tolist()
        else:
            found.append(token)
    assert next(left, None) is None
    return found


@pytest.fixture(scope="module", params=["parts", "one text", "of the processor"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Serve]:
    """A model's folder and vLLM's server over it, for each way in which a template takes parts."""
    folder = make_vision_folder(tmp_path_factory.mktemp("vision"))
    if request.param == "one text":
        (folder / "chat_template.jinja").write_text(ONE_TEXT)
    if request.param == "of the processor":
        (folder / "chat_template.jinja").write_text("not this one")
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder, serving(folder)


def test_every_size_becomes_the_tokens_that_the_engine_makes_of_it(
    served: tuple[Path, Serve],
) -> None:
    """Rows and columns of tiles, with the rounding of the model's own processor."""
    folder, serve = served
    for size in SIZES:
        body = showing(text_part("What?"), image_part(png(1, *size)), text_part("Say it."))
        (ids,) = ours(folder, CHAT, [body])
        assert expanded(folder, ids, [size]) == serve(CHAT, body), size


def test_parts_stand_where_the_engine_puts_them(served: tuple[Path, Serve]) -> None:
    """Images before, between and after texts, several in a message, in several messages."""
    folder, serve = served
    small, large = image_part(png(1)), image_part(png(2, 64, 64))
    again = showing(small, text_part("one"))
    again["messages"] += [
        {"role": "assistant", "content": "A bird."},
        {"role": "user", "content": [text_part("And"), large, text_part(" "), small]},
    ]
    asked: list[tuple[dict[str, Any], list[tuple[int, int]]]] = [
        (showing(small), [(40, 24)]),
        (showing(small, text_part("")), [(40, 24)]),
        (showing(large, small, text_part("both")), [(64, 64), (40, 24)]),
        (showing(text_part("a"), small, text_part("b"), large), [(40, 24), (64, 64)]),
        (showing(text_part("nothing")), []),
        (again, [(40, 24), (64, 64), (40, 24)]),
    ]
    for (body, sizes), ids in zip(
        asked, ours(folder, CHAT, [one for one, _ in asked]), strict=True
    ):
        assert expanded(folder, ids, sizes) == serve(CHAT, body), body


def test_only_known_kinds_take_images(tmp_path: Path) -> None:
    """A text-only model, a kind whose placeholder is not known, and no model at all take none."""
    folder = make_vision_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert Vision.of(folder) is not None
    for changed in ({**config, "model_type": "unheard_of"}, {**config, "vision_config": ...}):
        kept = {name: value for name, value in changed.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(kept))
        assert Vision.of(folder) is None
    assert Vision.of(tmp_path / "missing") is None
