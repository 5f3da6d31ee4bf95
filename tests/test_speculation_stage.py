"""Whether a plan drafts: what is declared, what forbids it, what earlier runs of the job say."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from model_configs import CONFIGS
from support import MODEL, Declare
from support_history import settings
from support_planner import TablesOf, declared, deployed, fill, planned

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.speculation import Method, Speculation
from acdc_dagster.tables import Tables

NGRAM = {"method": "ngram", "tokens": 3}
POOL = {"pool": "H20:8"}


def with_model(deployment: Deployment, **place: Any) -> Deployment:
    """The deployment with more said of its model."""
    file = deployment.root / "resources" / "local.yaml"
    environment = yaml.safe_load(file.read_text())
    environment["models"][MODEL] |= place
    file.write_text(yaml.safe_dump(environment))
    return Deployment.load(deployment.root, "local")


def ran(tables: Tables, revision: str, method: Method | None, accepted: list[int]) -> None:
    """One run of the job in `history`, with 10,000 drafts."""
    speculation = None if method is None else Speculation(method=method, tokens=3)
    row = {
        "model_revision": revision,
        "settings": settings(speculation=speculation).model_dump_json(),
        "requests": 1000,
        "completion_tokens": 21_000,
        "drafts": 10_000 if method else 0,
        "accepted": accepted,
    }
    tables.appender("history", "run/w").append([row])


def test_without_a_word_or_a_measurement_nothing_is_drafted(
    tmp_path: Path, declare: Declare, deployment: Deployment, tables: TablesOf
) -> None:
    """What a look-up finds depends on the job, so it stays off, and the plan says why."""
    job = declared(declare)
    fill(tables(job))
    found = planned(job, deployed(deployment.root, POOL), tables(job)).plan
    assert found.engine.speculation is None
    assert "nothing was measured yet of what ngram would find" in found.why[-1]


@pytest.mark.parametrize("local", [POOL, {}])
def test_what_is_declared_is_taken(
    declare: Declare, deployment: Deployment, tables: TablesOf, local: dict[str, Any]
) -> None:
    """By the environment or the job, which goes before it; also to leave it out."""
    place = deployed(deployment.root, {**local, "engine": {"speculation": NGRAM}})
    job = declared(declare)
    fill(tables(job))
    found = planned(job, place, tables(job)).plan
    assert found.engine.speculation == Speculation(method="ngram", tokens=3)
    assert "speculation" in found.pinned
    off = declared(declare, engine={"speculation": None})
    found = planned(off, place, tables(off)).plan
    assert found.engine.speculation is None
    assert "switched off" in found.why[-1]


def test_requests_that_vllm_refuses_then_are_not_drafted_for(
    declare: Declare, deployment: Deployment, tables: TablesOf
) -> None:
    """They would all fail otherwise."""
    place = deployed(deployment.root, {**POOL, "engine": {"speculation": NGRAM}})
    job = declared(declare)
    fill(tables(job), rows=10)
    rows = tables(job).read("sorted_requests", "all")
    sampling = pl.when(pl.col("position") == 3).then(pl.lit('{"min_p":0.1}')).otherwise("sampling")
    tables(job).replace(
        "sorted_requests", "all", rows.with_columns(sampling=sampling).drop("partition_key")
    )
    found = planned(job, place, tables(job)).plan
    assert found.engine.speculation is None
    assert "1 request(s) ask for min_p" in found.why[-1]


@pytest.mark.parametrize(
    ("accepted", "drafts"), [([9000, 8500, 8000], True), ([900, 80, 8], False)]
)
def test_what_earlier_runs_found_decides(
    declare: Declare, deployment: Deployment, tables: TablesOf, accepted: list[int], drafts: bool
) -> None:
    """Few requests of long context are bound by memory, so drafts that hold pay; others do not."""
    place = deployed(deployment.root, {"pool": "H20:4"}, CONFIGS["Qwen3-32B"])
    job = declared(declare)
    fill(tables(job), rows=64, prompt=16_000, most=2_000)
    revision = place.model(MODEL).revision
    ran(tables(job), revision, "ngram", accepted)
    found = planned(job, place, tables(job)).plan
    assert (found.engine.speculation is not None) is drafts
    assert "acceptance as measured" in found.why[-1]


def test_runs_of_another_model_or_drafter_say_nothing(
    declare: Declare, deployment: Deployment, tables: TablesOf
) -> None:
    """Nor do runs that did not draft."""
    place = deployed(deployment.root, POOL)
    job = declared(declare)
    fill(tables(job), rows=64)
    ran(tables(job), "another", "ngram", [9000])
    ran(tables(job), place.model(MODEL).revision, "suffix", [9000])
    ran(tables(job), place.model(MODEL).revision, None, [])
    assert "nothing was measured" in planned(job, place, tables(job)).plan.why[-1]


def test_a_declared_head_drafts_before_it_was_measured(
    declare: Declare, deployment: Deployment, tables: TablesOf
) -> None:
    """Its path is the deployment's, and acceptance is what published heads have."""
    config = CONFIGS["Qwen3-32B"]
    head = deployment.root / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    place = deployed(deployment.root, {"pool": "H20:4"}, config)
    place = with_model(place, drafter={"method": "eagle3", "path": "head"})
    job = declared(declare)
    fill(tables(job), rows=64, prompt=16_000, most=2_000)
    found = planned(job, place, tables(job)).plan
    assert found.engine.speculation is not None
    assert found.engine.speculation.model_path == str(head)
    assert "acceptance as assumed" in found.why[-1]


@pytest.mark.parametrize("drafter", [{"method": "eagle"}, {"method": "ngram", "path": "head"}])
def test_a_drafting_model_has_a_path_and_a_look_up_none(
    deployment: Deployment, drafter: dict[str, str]
) -> None:
    """Told when the environment is read."""
    with pytest.raises(DeclarationError, match=f"path: {drafter['method']} needs"):
        with_model(deployed(deployment.root, POOL), drafter=drafter)
