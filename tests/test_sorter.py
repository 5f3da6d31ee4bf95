"""Stage 2 without tables: any rows, in any memory, become the same distinct sorted requests."""

import json
import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from acdc_dagster.models import Model
from acdc_dagster.prefix.segments import IdOrder
from acdc_dagster.prefix.sorter import Sorter, hex_of
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.tokens.tokenizer import ByteEstimate, ModelTokenizer, PromptTokenizer
from acdc_dagster.requests.body import CHAT

ROOMY, TIGHT = 2**30, 30_000
LAYOUT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
STEMS = ["Tag this product.", "Sort this ticket, please: ", "Sum it up.\n\n", "", "Ünï 🙂 "]


@dataclass(frozen=True)
class Found:
    """All that a sorter gives."""

    mapped: dict[str, str]
    hashes: list[str]
    tokens: list[list[int]]
    lcp: list[int]
    sampling: list[str]
    sorter: Sorter


def sort(
    bodies: list[dict[str, Any]], memory: int, tokenizer: PromptTokenizer, model: Model
) -> Found:
    """Sort chat bodies, given a few at a time."""
    chat = ChatTemplate(model.path) if model.path.is_dir() else ChatTemplate.of(LAYOUT)
    sorter = Sorter(tokenizer, chat, model, {}, "p", memory)
    raw = pl.DataFrame(
        {
            "custom_id": [f"r{at}" for at in range(len(bodies))],
            "endpoint": [CHAT] * len(bodies),
            "body": [json.dumps(body) for body in bodies],
            "source": ["f"] * len(bodies),
            "line": list(range(len(bodies))),
            "input_rows": [1] * len(bodies),
        }
    )
    mapped = pl.concat([sorter.add(part) for part in raw.iter_slices(37)])
    frames = list(sorter.sorted())
    return Found(
        dict(mapped.select("custom_id", "request_hash").iter_rows()),
        [h for frame in frames for h in hex_of(frame.hashes)],
        [frame.tokens[at].tolist() for frame in frames for at in range(len(frame.tokens))],
        [int(n) for frame in frames for n in frame.lcp],
        [s for frame in frames for s in frame.sampling],
        sorter,
    )


def some_bodies(seed: int, count: int = 400) -> list[dict[str, Any]]:
    """Conversations of different shapes that share beginnings; some equal, some sampled."""
    dice = random.Random(seed)
    found: list[dict[str, Any]] = []
    for _ in range(count):
        roles = dice.choice([["user"], ["system", "user"], ["user", "assistant", "user"]])
        words = [
            dice.choice(STEMS) + " ".join(dice.choices("abcde", k=dice.randint(0, 6)))
            for _ in roles
        ]
        if dice.random() < 0.1:
            words[-1] += dice.choice(["<|im_end|>", "<|im_start|>user\nx", " \n", "<|im_end|>\n"])
        messages = [{"role": r, "content": w} for r, w in zip(roles, words, strict=True)]
        if dice.random() < 0.05:
            messages[-1]["content"] = [{"type": "text", "text": words[-1]}]  # type: ignore[assignment]
        asks = dice.choice(
            [{"temperature": 0}, {"temperature": 0, "max_tokens": 5}, {"temperature": 1}]
        )
        found.append({"model": "m", "messages": messages, **asks})
    return found


@pytest.fixture(scope="module", params=["model", "estimate"])
def kind(request: pytest.FixtureRequest, model_path: Path) -> tuple[PromptTokenizer, Model]:
    """Ids of two bytes and special tokens, or of four bytes and none."""
    if request.param == "model":
        return ModelTokenizer(model_path), Model("m", model_path, "r", 2048)
    return ByteEstimate(), Model("m", Path("nowhere"), "r", 2**20)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_depth_first_and_each_request_stands_once(
    kind: tuple[PromptTokenizer, Model], seed: int
) -> None:
    """Sorted by ids, the special ones first, then by hash; the LCP array is what they share."""
    tokenizer, model = kind
    found = sort(some_bodies(seed), ROOMY, tokenizer, model)
    assert found.sorter.spilled_bytes == 0
    assert len(set(found.hashes)) == len(found.hashes) == found.sorter.distinct
    assert set(found.hashes) == set(found.mapped.values())
    order = IdOrder(tokenizer.ids, tokenizer.cuts.values())
    ranked = [order.ranks(np.array(ids, dtype=np.int64)).tolist() for ids in found.tokens]
    rows = list(zip(ranked, found.hashes, strict=True))
    assert rows == sorted(rows)
    shared = [
        next(
            (at for at, (a, b) in enumerate(zip(*pair, strict=False)) if a != b),
            min(map(len, pair)),
        )
        for pair in pairwise(found.tokens)
    ]
    assert found.lcp == [0, *shared]


@pytest.mark.parametrize("seed", range(3))
def test_memory_changes_nothing_but_the_spill(
    kind: tuple[PromptTokenizer, Model], seed: int
) -> None:
    """Sorted in many runs on disk, the result is that of one run in memory."""
    bodies = some_bodies(seed)
    roomy, tight = sort(bodies, ROOMY, *kind), sort(bodies, TIGHT, *kind)
    assert tight.sorter.spilled_bytes > 0
    for name in ("mapped", "hashes", "tokens", "lcp", "sampling"):
        assert getattr(tight, name) == getattr(roomy, name)


def test_what_repeats_another_request_has_its_hash(kind: tuple[PromptTokenizer, Model]) -> None:
    """Equal requests are one, however they are written; samples and other settings are not."""
    plain = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    parts = {
        **plain,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    }
    sampled, shorter = {**plain, "temperature": 1}, {**plain, "max_tokens": 5}
    bodies = [plain, parts, {**plain, "user": "u"}, sampled, sampled, shorter]
    mapped = list(sort(bodies, ROOMY, *kind).mapped.values())
    assert mapped[0] == mapped[1] == mapped[2]
    assert len(set(mapped[2:])) == 4
    # A request has its hash whatever else is in the job.
    assert list(sort(bodies[5:], ROOMY, *kind).mapped.values()) == mapped[5:]


def test_a_prompt_without_room_is_refused_alone(kind: tuple[PromptTokenizer, Model]) -> None:
    """It is in `refused` with its measured length and the limit; its neighbours run."""
    tokenizer, model = kind
    fits = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    long = {**fits, "messages": [{"role": "user", "content": "word " * 3000}]}
    endless = {**fits, "messages": [{"role": "user", "content": "x" * 10**6}]}
    small = Model("m", model.path, "r", 2048)
    found = sort([fits, long, endless], ROOMY, tokenizer, small)
    refused = found.sorter.refused
    assert list(found.mapped) == ["r0"]
    assert sorted(r.custom_id or "" for r in refused) == ["r1", "r2"]
    assert {r.code for r in refused} == {"context_length_exceeded"}
    assert all("2048" in r.message for r in refused)


def test_nothing_to_sort(kind: tuple[PromptTokenizer, Model]) -> None:
    """A partition without rows gives nothing and fails nothing."""
    sorter = Sorter(kind[0], ChatTemplate.of(LAYOUT), kind[1], {}, "p", ROOMY)
    assert list(sorter.sorted()) == []
    assert (sorter.requests, sorter.distinct, sorter.refused) == (0, 0, [])
