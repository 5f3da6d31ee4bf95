"""The table `images`: each image once, and what preparation tells of them."""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image as Pillow
from support import MODEL, Declare, request_line
from vision_model import data_url, image_part, make_vision_folder, png, text_part

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.models import Model, found_model
from acdc_dagster.prefix.image_store import ImageStats, ImageStore
from acdc_dagster.prefix.stage import SortedStats, sort_requests
from acdc_dagster.prefix.text.vision import Vision
from acdc_dagster.requests.images import image_of
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

Prepare = Callable[..., tuple[SortedStats, Tables]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A multimodal model as far as preparation sees it."""
    return found_model(MODEL, make_vision_folder(tmp_path_factory.mktemp("vision")), None, "")


@pytest.fixture
def prepare(
    deployment: Deployment, declare: Declare, tables: Callable[[Job], Tables], model: Model
) -> Prepare:
    """Stages 1 and 2 for requests, given by the parts of their one message."""

    def run(*contents: list[dict[str, Any]], by: Model = model) -> tuple[SortedStats, Tables]:
        lines = [request_line(f"r{at}", content) for at, content in enumerate(contents)]
        (deployment.root / "requests.jsonl").write_text("\n".join(lines))
        job = declare("seen", {"source": {"requests": "requests.jsonl"}, "model": MODEL})
        take_in(job, deployment, tables(job), "all")
        return sort_requests(by, tables(job), "all", block_size=32), tables(job)

    return run


def name(image: bytes) -> str:
    """What an image is known by."""
    return hashlib.sha256(image).hexdigest()


def test_each_image_stands_once(prepare: Prepare) -> None:
    """With its bytes; requests name it, and neither they nor their texts hold its bytes."""
    wide, small = png(3, 64, 20), png(1)
    stats, tables = prepare(
        [text_part("What?"), image_part(small)],
        [text_part("What is it?"), image_part(small), image_part(wide)],
        [text_part("Nothing to see")],
        [text_part("What?"), image_part(small)],
    )
    kept = tables.read("images", "all").drop("partition_key").rows()
    seen = [
        (name(wide), "image/png", wide, 64, 20),
        (name(small), "image/png", small, 40, 24),
    ]
    assert kept == sorted(seen)
    mapped = tables.read("request_map", "all", ["custom_id", "request_hash"])
    asked = tables.read("sorted_requests", "all").join(mapped, on="request_hash")
    shown = dict(asked.select("custom_id", "images").iter_rows())
    one, both = [name(small)], [name(small), name(wide)]
    assert shown == {"r0": one, "r1": both, "r2": [], "r3": one}
    assert stats.images == ImageStats(3, 2, len(wide) + len(small), 0)
    assert stats.images.saved == pytest.approx(1 / 3)
    assert stats.warnings == []


def test_images_of_an_earlier_run_are_gone(prepare: Prepare) -> None:
    """A stage that runs again replaces its partition, with no image too."""
    prepare([image_part(png(1))])
    _, tables = prepare([image_part(png(2))])
    assert tables.read("images", "all")["sha256"].to_list() == [name(png(2))]
    stats, tables = prepare([text_part("None")])
    assert tables.count("images", "all") == 0
    assert stats.images.saved == 0


def test_a_text_only_model_rejects_the_row(prepare: Prepare, deployment: Deployment) -> None:
    """Naming the model; the text beside it runs."""
    text_only = deployment.model(MODEL)
    stats, tables = prepare([image_part(png(1))], [text_part("Hello")], by=text_only)
    (rejected,) = tables.read("rejected", "all").to_dicts()
    assert (rejected["custom_id"], rejected["code"]) == ("r0", "unsupported_content")
    assert MODEL in rejected["message"]
    assert (stats.requests, stats.rejected, tables.count("images", "all")) == (1, 1, 0)


def test_the_context_has_to_hold_the_images_tokens(prepare: Prepare, model: Model) -> None:
    """A prompt is measured as the engine sees it: with what an image becomes."""
    content = [text_part("What?"), image_part(png(3, 64, 64))]
    _, tables = prepare(content)
    (row,) = tables.read("sorted_requests", "all").to_dicts()
    # Two rows of two tiles and a whole one; this tokenizer has a token for each line end.
    assert row["image_tokens"] == 2 * 2 * (4 + 2) + 3 + (4 + 3) - 1
    length = row["prompt_tokens"] + row["image_tokens"]
    stats, tables = prepare(content, by=replace(model, context_length=length + 1))
    assert json.loads(tables.read("sorted_requests", "all")["sampling"][0])["max_tokens"] == 1
    assert stats.limited == 1
    stats, tables = prepare(content, by=replace(model, context_length=length))
    assert (stats.requests, tables.read("rejected")["code"].to_list()) == (
        0,
        ["context_length_exceeded"],
    )


def test_tokens_that_only_the_engine_knows_are_counted_as_unknown(
    prepare: Prepare, tmp_path: Path
) -> None:
    """The request runs, with the room that is left at most."""
    folder = make_vision_folder(tmp_path / "other")
    (folder / "processor_config.json").unlink()
    other = found_model(MODEL, folder, None, "")
    stats, tables = prepare([image_part(png(1))], [text_part("Hello")], by=other)
    rows = tables.read("sorted_requests", "all")
    added = {bool(images): tokens for images, tokens in rows["images", "image_tokens"].iter_rows()}
    assert added == {True: None, False: 0}
    assert stats.images.unknown == 1
    (warning,) = stats.warnings
    assert warning.startswith("1 request")


def test_an_image_that_may_be_turned_counts_as_the_smaller(model: Model) -> None:
    """Where it matters which way it is turned; else its tokens are known."""
    orientation = Pillow.Exif()
    orientation[0x0112] = 6

    def kept(width: int, height: int) -> tuple[int, list[int | None]]:
        file = io.BytesIO()
        Pillow.new("RGB", (width, height)).save(file, "JPEG", exif=orientation)
        store = ImageStore(vision, lambda text: text.count("<") + text.count("\n"))
        image = image_of(data_url(file.getvalue()))
        return store.add(image), store.tokens(pl.Series([[image.sha256.hex()]])).to_list()

    vision = Vision.of(model.path)
    flat, upright = 1 * (2 * 6 + 1) + 1 + 7 - 1, 2 * (6 + 1) + 1 + 7 - 1
    assert kept(64, 20) == kept(20, 64) == (min(flat, upright), [None])
    assert kept(64, 64) == (2 * (2 * 6 + 1) + 1 + 7 - 1, [2 * (2 * 6 + 1) + 1 + 7 - 1])
