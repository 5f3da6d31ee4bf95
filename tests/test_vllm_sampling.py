"""Hints for a scheduler that is plugged into vLLM: all of them if it is on, none if it is off."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from vllm_client import started

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.inference.engines.protocol import Answer, Request

PLUGIN = "recording_scheduler.RecordingScheduler"
# Prompt tokens shared with the next request, most tokens of the answer.
ASKED = [(5, 3), (0, 2)]


def answers(model_path: Path, **changes: Any) -> list[Answer]:
    """Of an engine that is started for two requests."""
    engine = started(model_path, **changes)
    tokens = np.arange(20, 28, dtype="<u2").tobytes()
    for number, (next_lcp, room) in enumerate(ASKED):
        sampling = json.dumps({"max_tokens": room, "temperature": 0.0, "ignore_eos": True})
        engine.add(Request(f"{number:032x}", tokens, 8, sampling, room, next_lcp))
    found: list[Answer] = []
    while engine.unfinished:
        found += engine.step()
    engine.close()
    return sorted(found, key=lambda answer: answer.request_hash)


@pytest.mark.engine
def test_a_plugin_is_told_of_each_request_only_where_it_is_switched_on(model_path: Path) -> None:
    """The scheduler reads the hints in vLLM's request; without the switch it gets none."""
    from recording_scheduler import told

    told.clear()
    hinted = answers(model_path, scheduler_plugin=PLUGIN)
    assert told == [
        {"acdc": {"next_lcp": next_lcp, "answer_tokens": room}} for next_lcp, room in ASKED
    ]
    told.clear()
    plain = answers(model_path, extra={"enforce_eager": True, "scheduler_cls": PLUGIN})
    assert told == [None, None]
    assert [answer.completion_tokens for answer in hinted] == [room for _, room in ASKED]
    assert [answer.text for answer in hinted] == [answer.text for answer in plain]


def test_a_plugin_is_declared_by_its_class(deployment: Deployment) -> None:
    """It is off unless it is named, and what cannot be a class is refused with its line."""
    assert deployment.environment.backends.local.engine.scheduler_plugin is None
    path = deployment.root / "resources" / "local.yaml"
    environment = yaml.safe_load(path.read_text())
    engine = environment["backends"]["local"]["engine"]
    engine["scheduler_plugin"] = PLUGIN
    path.write_text(yaml.safe_dump(environment))
    declared = Deployment.load(deployment.root, "local").environment.backends.local.engine
    assert declared.scheduler_plugin == PLUGIN
    engine["scheduler_plugin"] = "no class"
    path.write_text(yaml.safe_dump(environment))
    with pytest.raises(DeclarationError, match="scheduler_plugin"):
        Deployment.load(deployment.root, "local")
