"""The second stage as a whole: when it stops, and what it leaves behind."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import MODEL, Declare, request_line

from acdc_dagster.cli import main
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError
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


LONG = "word " * 9000  # more tokens than the context has


@pytest.mark.parametrize(
    ("limit", "bad", "long", "good"),
    [(0, 0, 1, 5), (2, 1, 2, 9), (None, 6, 5, 3), (0.25, 1, 1, 5), (None, 0, 2, 0), (9, 1, 1, 0)],
)
def test_rows_that_both_stages_reject_count_together(
    deployment: Deployment,
    declared: Callable[..., Job],
    tables: TablesOf,
    limit: float | None,
    bad: int,
    long: int,
    good: int,
) -> None:
    """More than the job allows, or all, stop the second stage; the tables of the last run stay."""
    job, model = declared(max_rejected=limit), deployment.model(MODEL)
    into = tables(job)
    take(deployment, job, into, [request_line("old")])
    sort_requests(model, into, "all", block_size=32, job=job)
    lines = [request_line(n) for n in range(bad)]
    lines += [request_line(f"l{n}", f"{n} {LONG}") for n in range(long)]
    take(deployment, job, into, [*lines, *(request_line(f"g{n}") for n in range(good))])
    with pytest.raises(SourceError) as caught:
        sort_requests(model, into, "all", block_size=32, job=job)
    rows = bad + long + good
    assert caught.value.problem.startswith(f"{bad + long} of {rows} rows of batch are no valid")
    assert f"context_length_exceeded: {long}" in caught.value.problem
    assert "sorted_requests was not written" in caught.value.problem
    assert ("max_rejected" in caught.value.remedy) == (good > 0)
    assert into.count("rejected", "all") == bad + long
    assert into.read("request_map", "all")["custom_id"].to_list() == ["old"]
    assert into.count("sorted_requests", "all") == 1
    if good:
        allowed = declared(max_rejected=bad + long)
        stats = sort_requests(model, into, "all", block_size=32, job=allowed)
        assert (stats.requests, stats.rejected) == (good, long)


def test_equal_rows_that_do_not_fit_count_as_many(
    deployment: Deployment, declared: Callable[..., Job], tables: TablesOf
) -> None:
    """As one row of `rejected` they stand for all of the source's rows."""
    job = declared(max_rejected=2)
    take(deployment, job, tables(job), [request_line("g"), *[request_line("l", LONG)] * 3])
    with pytest.raises(SourceError, match=r"^3 of 4 rows"):
        sort_requests(deployment.model(MODEL), tables(job), "all", block_size=32, job=job)


@pytest.mark.parametrize(("long", "can_run"), [(1, True), (2, False)])
def test_a_check_and_a_run_agree(
    deployment: Deployment,
    declared: Callable[..., Job],
    tables: TablesOf,
    monkeypatch: pytest.MonkeyPatch,
    long: int,
    can_run: bool,
) -> None:
    """`acdc check` says that a job can run what its second stage lets run, and no more."""
    job = declared(max_rejected=1)
    take(deployment, job, tables(job), [request_line("g"), *[request_line("l", LONG)] * long])
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    said = CliRunner().invoke(main, ["check", "batch"]).output
    assert ("A job can run this." in said) == can_run

    def run() -> None:
        sort_requests(deployment.model(MODEL), tables(job), "all", block_size=32, job=job)

    if can_run:
        run()
    else:
        with pytest.raises(SourceError, match="no valid requests"):
            run()
