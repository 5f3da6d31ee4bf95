"""How a multimodal model's prompt says where an image goes, and how many tokens it becomes."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
# By model_type: the special token that the engine puts an image in the place of, and what it writes
# for an image where the chat template takes a content as one text. As in the models of vLLM.
_PLACES = {
    "gemma3": ("<start_of_image>", "<start_of_image>"),
    "idefics3": ("<image>", "<image>"),
    "llava": ("<image>", "<image>"),
    "llava_next": ("<image>", "<image>"),
    "qwen2_5_vl": ("<|image_pad|>", _QWEN),
    "qwen2_vl": ("<|image_pad|>", _QWEN),
    "qwen3_vl": ("<|image_pad|>", _QWEN),
    "qwen3_vl_moe": ("<|image_pad|>", _QWEN),
    "smolvlm": ("<image>", "<image>"),
}


@dataclass(frozen=True)
class Vision:
    """What a model's folder says of its images.

    Attributes:
        token: The special token in whose place an image comes.
        inserted: What is written for an image where a content is one text.
        expanded: The text that the engine puts in the place of an image of a width and height in
            pixels; None if only the engine can tell.
        template: The processor's chat template, where it has one beside the tokenizer's: what a
            body without tools is rendered with.
    """

    token: str
    inserted: str
    expanded: Callable[[int, int], str] | None = None
    template: str | None = None

    @staticmethod
    def of(folder: Path) -> "Vision | None":
        """That of the model in a folder; None if it is not known to take images."""
        config = _json(folder / "config.json")
        kind = config.get("model_type")
        if "vision_config" not in config or kind not in _PLACES:
            return None
        expanded = _tiled(folder) if kind == "idefics3" else None
        return Vision(*_PLACES[kind], expanded, _processor_template(folder))


def _processor_template(folder: Path) -> str | None:
    """From the two places where transformers 5 looks before chat_template.jinja."""
    declared = (
        _json(folder / name).get("chat_template")
        for name in ("processor_config.json", "chat_template.json")
    )
    return next((template for template in declared if isinstance(template, str)), None)


def _tiled(folder: Path) -> Callable[[int, int], str] | None:
    """What Idefics3 writes for an image: tiles in rows, then a small whole one.

    The tiles are those of an image whose longer side is brought to `size`; if that is one tile,
    there is only the whole. (Idefics3Processor in transformers 5.)
    """
    processor = _json(folder / "processor_config.json")
    image: dict[str, Any] = processor.get("image_processor") or _json(
        folder / "preprocessor_config.json"
    )
    try:
        a_tile = "<image>" * int(processor["image_seq_len"])
        longest = int(image["size"]["longest_edge"])
        side = int(image["max_image_size"]["longest_edge"])
        splits = bool(image["do_image_splitting"])
    except (KeyError, TypeError, ValueError):
        return None
    edge = "<fake_token_around_image>"
    whole = f"{edge}<global-img>{a_tile}{edge}"

    def expanded(width: int, height: int) -> str:
        rows, columns = _tiles(width, height, longest, side) if splits else (1, 1)
        if rows * columns == 1:
            return whole
        tiles = [
            "".join(f"{edge}<row_{row}_col_{column}>{a_tile}" for column in range(1, columns + 1))
            for row in range(1, rows + 1)
        ]
        return "\n".join([*tiles, "", whole])

    return expanded


# The processor of Idefics3 takes no larger side, whatever its configuration says.
_LONGEST_SIDE = 4096


def _tiles(width: int, height: int, longest: int, side: int) -> tuple[int, int]:
    """Rows and columns of tiles, with the processor's own rounding."""
    ratio = width / height
    if width >= height:
        width, height = longest, max(_even(int(longest / ratio)), 1)
    else:
        width, height = max(_even(int(longest * ratio)), 1), longest
    ratio = width / height
    if width >= height and width > _LONGEST_SIDE:
        width, height = _LONGEST_SIDE, max(int(_LONGEST_SIDE / ratio), 1)
    elif height > width and height > _LONGEST_SIDE:
        width, height = max(int(_LONGEST_SIDE * ratio), 1), _LONGEST_SIDE
    return math.ceil(height / side), math.ceil(width / side)


def _even(pixels: int) -> int:
    return pixels + pixels % 2


def _json(path: Path) -> dict[str, Any]:
    """A file's object; empty where there is none, as for a tokenizer without a model."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
