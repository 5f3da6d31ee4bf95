"""Requests on their way into prefix order: what the model's context does to them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import MODEL, Declare, request_line, sorted_prompts

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.requests.body import CHAT
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables


def body(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


@pytest.mark.parametrize(
    ("fields", "limited"),
    [
        ({"max_tokens": 2}, 0),
        ({"max_tokens": 3}, 0),
        ({"max_tokens": 4}, 1),
        ({"max_completion_tokens": 4}, 1),
        ({"max_tokens": 4, "max_completion_tokens": 3}, 0),
        ({"max_tokens": 2000}, 2),
        ({}, 0),  # may fill the context, and does not ask for more
    ],
)
def test_requests_that_get_less_room_than_they_ask_for(
    deployment: Deployment, fields: dict[str, Any], limited: int
) -> None:
    """With three tokens of room after the longer prompt and many after the shorter."""
    model = deployment.model(MODEL)
    bodies = [body("Hi", **fields), body("word " * 100, **fields)]
    _, prompts = sorted_prompts(model, CHAT, bodies)
    lengths = [len(prompt or []) for prompt in prompts]
    small = replace(model, context_length=max(lengths) + 3)
    sorter, again = sorted_prompts(small, CHAT, bodies)
    assert again == prompts
    assert (sorter.limited, sorter.refused) == (limited, [])


def test_the_stage_tells_how_many_are_limited(
    deployment: Deployment, declare: Declare, tables: Callable[[Job], Tables]
) -> None:
    """As a warning, and only if there are any."""
    lines = [
        request_line("a", max_tokens=2000),
        request_line("b", max_tokens=2000),
        request_line("c"),
    ]
    (deployment.root / "requests.jsonl").write_text("\n".join(lines))
    job = declare("asked", {"source": {"requests": "requests.jsonl"}, "model": MODEL})
    take_in(job, deployment, tables(job), "all")
    model = deployment.model(MODEL)
    stats = sort_requests(model, tables(job), "all", block_size=32)
    assert (stats.limited, stats.warnings) == (0, [])
    small = replace(model, context_length=1000)
    stats = sort_requests(small, tables(job), "all", block_size=32)
    assert (stats.requests, stats.limited) == (3, 2)
    (warning,) = stats.warnings
    assert warning.startswith("2 requests ask for a longer answer")
