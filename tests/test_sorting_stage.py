"""The second stage as a whole: when it stops, and what it leaves behind."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import MODEL, Declare, request_line

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.prefix import stage as sorting
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.requests.stage import take_in
from acdc_dagster.spool import SpaceError
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]


def take(deployment: Deployment, job: Job, tables: Tables, lines: list[str]) -> None:
    """Stage 1 over these lines."""
    (deployment.root / "in.jsonl").write_text("\n".join(lines))
    take_in(job, deployment, tables, "all")


@pytest.fixture
def declared(declare: Declare) -> Callable[..., Job]:
    """A job over in.jsonl."""

    def made(**attributes: Any) -> Job:
        source = {"requests": "in.jsonl"}
        return declare("batch", {"source": source, "model": MODEL, **attributes})

    return made


def test_a_disk_that_is_full_at_the_last_spill_changes_no_table(
    deployment: Deployment,
    declared: Callable[..., Job],
    tables: TablesOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All temporary files are whole before the first commit."""
    job, model = declared(), deployment.model(MODEL)
    into = tables(job)
    take(deployment, job, into, [request_line(f"old{n}", f"Old {n}") for n in range(3)])
    sort_requests(model, into, "all", block_size=32)
    written = "request_map", "evaluation", "rejected", "sorted_requests"
    before = [into.read(name, "all") for name in written]
    take(deployment, job, into, [request_line(f"new{n}", f"New {n}") for n in range(401)])
    tokenised = sorting.tokenised

    def and_full(*arguments: Any) -> Any:
        found = tokenised(*arguments)
        assert found.sorter.spilled_bytes > 0
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        return found

    monkeypatch.setattr(sorting, "READ", 400)
    monkeypatch.setattr(sorting, "tokenised", and_full)
    with pytest.raises(SpaceError, match="gone"):
        sort_requests(model, into, "all", block_size=32, memory=20_000)
    for name, rows in zip(written, before, strict=True):
        assert into.read(name, "all").equals(rows)
