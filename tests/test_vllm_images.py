"""Images on a real engine: a tiny multimodal model with random weights."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import MODEL, Declare, request_line, sorted_prompts
from vision_model import image_part, make_vision_model, png, showing, text_part
from vllm_client import started

from acdc_dagster.deployment import Deployment
from acdc_dagster.inference.engines.protocol import Answer, Image, Request, RequestRefused
from acdc_dagster.inference.engines.vllm_engine import VllmEngine
from acdc_dagster.inference.worker import WorkOrder, work
from acdc_dagster.job import Job
from acdc_dagster.models import found_model
from acdc_dagster.planning.stage import profile
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.requests.body import CHAT
from acdc_dagster.requests.images import image_of
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

pytestmark = pytest.mark.engine

SAMPLING = json.dumps({"max_tokens": 6, "temperature": 0.0, "ignore_eos": True})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model."""
    return make_vision_model(tmp_path_factory.mktemp("vision") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    """One engine for all tests here, in this process."""
    made = started(folder)
    yield made
    made.close()


def request_of(folder: Path, body: dict[str, Any], name: str) -> Request:
    """What the worker gives the engine for a body."""
    _, (ids,) = sorted_prompts(found_model("m", folder, None, ""), CHAT, [body])
    assert ids is not None
    seen = [
        image_of(part["image_url"]["url"])
        for message in body["messages"]
        for part in message["content"]
        if part["type"] == "image_url"
    ]
    images = [Image(image.sha256.hex(), image.content) for image in seen]
    tokens = np.array(ids, dtype="<u2").tobytes()
    return Request(name, tokens, len(ids), SAMPLING, 6, 0, images)


def answers(engine: VllmEngine, requests: list[Request]) -> dict[str, Answer]:
    """The answers by the names of the requests, given all at once."""
    for request in requests:
        engine.add(request)
    found: dict[str, Answer] = {}
    while engine.unfinished:
        found.update({answer.request_hash: answer for answer in engine.step()})
    return found


def as_served(engine: VllmEngine, body: dict[str, Any]) -> Any:
    """vLLM's own output for a body: rendered, processed and answered by itself."""
    from vllm.renderers.params import ChatParams
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    inner = engine._engine  # pyright: ignore[reportPrivateUsage]
    rendered = {"add_generation_prompt": True}
    _, (prompt,) = inner.renderer.render_chat(
        [body["messages"]], ChatParams(None, chat_template_kwargs=rendered)
    )
    kind = RequestOutputKind.FINAL_ONLY
    inner.add_request(
        "theirs",
        prompt,
        SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, output_kind=kind),
    )
    while True:
        for output in inner.step():
            return output


BODIES = [
    showing(text_part("What?"), image_part(png(1)), text_part("Say.")),
    showing(image_part(png(2, 64, 20)), image_part(png(1)), text_part("Which is red?")),
    showing(text_part("No picture at all, only words that say so.")),
]


@pytest.mark.parametrize("at", range(len(BODIES)))
def test_answers_are_those_of_vllm_itself(engine: VllmEngine, folder: Path, at: int) -> None:
    """The same tokens after the engine has put the images in, and the same answer."""
    body = BODIES[at]
    answer = answers(engine, [request_of(folder, body, "ours")])["ours"]
    theirs = as_served(engine, body)
    assert answer.error_class is None
    assert answer.prompt_tokens == len(theirs.prompt_token_ids)
    assert answer.text == theirs.outputs[0].text
    other = showing(text_part("What?"), image_part(png(200)), text_part("Say."))
    if at == 0:  # the picture matters
        assert answers(engine, [request_of(folder, other, "x")])["x"].text != answer.text


def test_an_image_is_encoded_once_for_all_that_show_it(engine: VllmEngine, folder: Path) -> None:
    """Whatever the text before it, so that no KV block could be shared."""
    runner: Any = engine._engine.engine_core.engine_core.model_executor.driver_worker.worker  # pyright: ignore[reportPrivateUsage]
    tiles = 0

    def count(_module: Any, inputs: tuple[Any, ...], given: dict[str, Any]) -> None:
        nonlocal tiles
        pixels = given["pixel_values"] if "pixel_values" in given else inputs[0]
        tiles += len(pixels)

    vision = runner.model_runner.model.model.vision_model
    hook = vision.register_forward_pre_hook(count, with_kwargs=True)
    reds = [11, 11, 11, 12, 12, 12]
    bodies = [
        showing(text_part(f"{at} times: "), image_part(png(red)), text_part("?"))
        for at, red in enumerate(reds)
    ]
    asked = [request_of(folder, body, f"e{at}") for at, body in enumerate(bodies)]
    found = answers(engine, asked)
    hook.remove()
    assert all(answer.error_class is None for answer in found.values())
    assert tiles == 2 * 5  # four tiles and the whole, of each image


def test_an_image_that_cannot_be_decoded_costs_only_its_request(
    engine: VllmEngine, folder: Path
) -> None:
    """Its head was good, so that preparation took it; the engine refuses it and goes on."""
    broken = request_of(folder, showing(image_part(png(7)[:40])), "broken")
    with pytest.raises(RequestRefused, match="image"):
        engine.add(broken)
    good = request_of(folder, BODIES[0], "good")
    assert answers(engine, [good])["good"].error_class is None


def test_a_job_with_images_runs_from_its_file_to_results(
    deployment: Deployment,
    declare: Declare,
    tables: Callable[[Job], Tables],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker reads each image by its hash and hands it to an engine in its own process."""
    for name, value in (("OMP_NUM_THREADS", "1"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind")):
        monkeypatch.setitem(os.environ, name, value)
    contents = [
        [text_part("What?"), image_part(png(1)), text_part("Say.")],
        [text_part("What?"), image_part(png(2)), text_part("Say.")],
        [image_part(png(1)), image_part(png(2, 64, 20))],
        [text_part("Only words.")],
    ]
    lines = [request_line(f"r{at}", content) for at, content in enumerate(contents)]
    (deployment.root / "requests.jsonl").write_text("\n".join(lines))
    job = declare("seen", {"source": {"requests": "requests.jsonl"}, "model": MODEL})
    into = tables(job)
    model = found_model(MODEL, folder, None, "")
    take_in(job, deployment, into, "all")
    sort_requests(model, into, "all", block_size=32)
    plan = profile(job, deployment, model, into, "all").plan
    plan = plan.model_copy(
        update={"engine": plan.engine.model_copy(update={"max_model_len": 512, "kv_cache_gib": 1})}
    )
    work(WorkOrder("all", 0, "run"), plan, into, lambda _event: None, threading.Event())
    results = into.read("inference", "all")
    assert results["error_message"].to_list() == [None] * 4
    asked = into.read("sorted_requests", "all", ["request_hash", "prompt_tokens", "image_tokens"])
    both = results.select("request_hash", seen="prompt_tokens").join(asked, on="request_hash")
    assert (both["prompt_tokens"] + both["image_tokens"]).to_list() == both["seen"].to_list()
