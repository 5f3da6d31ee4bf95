"""Images on their way from their table to an engine."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from support import REPOSITORY

from acdc_dagster.deployment import Commit, Limits
from acdc_dagster.errors import IncompleteError
from acdc_dagster.inference import image_reader
from acdc_dagster.inference.engines import process
from acdc_dagster.inference.engines.protocol import Image
from acdc_dagster.inference.image_reader import ImageReader
from acdc_dagster.inference.left import left_of, requests_of
from acdc_dagster.inference.worker import WorkOrder, work
from acdc_dagster.planning.plan import Shard
from acdc_dagster.tables import Tables
from benchmarks.recorded import simulated_plan

PARTITION = "p"
Shown = list[list[int]]


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(str(tmp_path / "tables"), "job")


def name(number: int) -> str:
    return f"{number:064x}"


def content(number: int) -> bytes:
    return f"image {number}".encode() * 1000


def fill(tables: Tables, shown: Shown) -> None:
    """Requests that show images of these numbers, and the images."""
    count = len(shown)
    numbers = sorted({number for some in shown for number in some})
    rows = pl.DataFrame(
        {
            "position": range(count),
            "request_hash": [f"{n:032x}" for n in range(count)],
            "token_ids": [b"\1\0"] * count,
            "prompt_tokens": [1] * count,
            "lcp": [0] * count,
            "max_tokens": [4] * count,
            "sampling": [json.dumps({"max_tokens": 4})] * count,
            "images": pl.Series(
                [[name(number) for number in some] for some in shown], dtype=pl.List(pl.String)
            ),
            "image_tokens": [0] * count,
        }
    )

    def frames() -> Iterator[pl.DataFrame]:
        for number in numbers:
            yield pl.DataFrame(
                {
                    "sha256": [name(number)],
                    "media_type": ["image/png"],
                    "content": [content(number)],
                    "width": [1],
                    "height": [1],
                }
            )

    tables.replace("sorted_requests", PARTITION, rows)
    tables.replace("images", PARTITION, frames(), row_bytes=2**22)


SHOWN: Shown = [[n // 3] if n % 7 else [] for n in range(200)] + [[1, 2, 1], [70, 5]]


@pytest.mark.parametrize("kept", [2**28, 20_000, 0])
def test_each_request_gets_its_images(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """In their order, however few are kept; of those kept, no more than the bound."""
    monkeypatch.setattr(image_reader, "_KEPT_BYTES", kept)
    fill(tables, SHOWN)
    left = left_of(tables, PARTITION, Shard(number=0, start=0, stop=len(SHOWN)))
    read = list(requests_of(tables, PARTITION, left, at_once=4))
    expected = [[Image(name(number), content(number)) for number in some] for some in SHOWN]
    assert [request.images for request in read] == expected
    reader = ImageReader(tables, PARTITION)
    shown = tables.read("sorted_requests", PARTITION)["images"]
    assert list(reader.of_rows(shown)) == expected
    held = [image.content for image in reader._kept.values()]  # pyright: ignore[reportPrivateUsage]
    assert sum(map(len, held)) <= kept


def test_an_image_is_read_once_for_its_neighbours(tables: Tables) -> None:
    """Requests side by side that show one image share its bytes in memory."""
    fill(tables, [[1]] * 100)
    left = left_of(tables, PARTITION, Shard(number=0, start=0, stop=100))
    read = list(requests_of(tables, PARTITION, left, at_once=4))
    assert len({id(request.images[0].content) for request in read}) == 1


def test_a_missing_image_is_told_with_a_remedy(tables: Tables) -> None:
    """The tables do not belong together."""
    fill(tables, [[1], [2]])
    tables.replace("images", PARTITION, tables.read("images", PARTITION).head(1))
    left = left_of(tables, PARTITION, Shard(number=0, start=0, stop=2))
    with pytest.raises(IncompleteError, match="1 images") as caught:
        list(requests_of(tables, PARTITION, left, at_once=4))
    assert "sorted_requests" in caught.value.remedy


def test_images_reach_the_engine_in_several_messages(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many bytes the window holds, each request is answered once."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), f"{REPOSITORY / 'tests'}"]))
    monkeypatch.setattr(process, "_MESSAGE_BYTES", 10_000)
    fill(tables, SHOWN)
    plan = simulated_plan(len(SHOWN), {}, max_num_seqs=4, commit=Commit(), limits=Limits())
    order = WorkOrder(PARTITION, 0, "run")
    finished = work(
        order,
        plan,
        tables,
        lambda _event: None,
        threading.Event(),
        "benchmarks.recorded:RecordedEngine",
    )
    assert finished.done == len(SHOWN)
    rows = tables.read("inference", PARTITION)
    assert rows["request_hash"].is_unique().all()
    assert rows["error_class"].null_count() == len(SHOWN)
