"""Two runs of stage 1 at once: a partition has the tables of one of them, or nobody uses them."""

from collections.abc import Callable
from typing import Any

import pytest
from support import MODEL, Declare, request_line

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import IncompleteError
from acdc_dagster.job import Job
from acdc_dagster.prefix import stage as sorting
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import TableError, Tables

TablesOf = Callable[[Job], Tables]


@pytest.fixture
def job(deployment: Deployment, declare: Declare) -> Job:
    """Over a file with ten requests and five lines that are none."""
    found = declare("batch", {"source": {"requests": "in.jsonl"}, "model": MODEL})
    write(deployment, good=10, bad=5)
    return found


def write(deployment: Deployment, good: int, bad: int) -> None:
    lines = [request_line(f"r{n}") for n in range(good)] + ["bad"] * bad
    (deployment.root / "in.jsonl").write_text("\n".join(lines))


def counts(tables: Tables) -> tuple[int, int, int]:
    """Input rows of raw_requests and rejected, and those that source_chunks tells of."""
    columns = {"raw_requests": "input_rows", "rejected": "input_rows", "source_chunks": "rows"}
    raw, rejected, chunks = (
        int(tables.read(name, "all")[column].sum())  # pyright: ignore[reportArgumentType]
        for name, column in columns.items()
    )
    return raw, rejected, chunks


def at_the_commit_of(name: str, act: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once, as another process would, just before a table is replaced."""
    replace = Tables.replace

    def replaced(self: Tables, table: Any, *rest: Any, **options: Any) -> None:
        if table == name:
            monkeypatch.setattr(Tables, "replace", replace)
            act()
        replace(self, table, *rest, **options)

    monkeypatch.setattr(Tables, "replace", replaced)


def test_a_run_that_was_overtaken_says_so(
    deployment: Deployment, job: Job, tables: TablesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails, and another run gives the partition what its source has."""

    def another() -> None:
        write(deployment, good=20, bad=0)
        assert take_in(job, deployment, tables(job), "all").input_rows == 20

    at_the_commit_of("rejected", another, monkeypatch)
    with pytest.raises(TableError, match="Another run of batch") as caught:
        take_in(job, deployment, tables(job), "all")
    assert "run this partition again" in caught.value.remedy
    # The other run was between two looks of this one, so the next stage refuses the mixture.
    with pytest.raises(IncompleteError, match="of different runs"):
        sort_requests(deployment.model(MODEL), tables(job), "all", block_size=32)
    assert tables(job).count("request_map") == 0
    take_in(job, deployment, tables(job), "all")
    assert counts(tables(job)) == (20, 0, 20)
    assert sort_requests(deployment.model(MODEL), tables(job), "all", block_size=32).requests == 20


def test_a_run_overtaken_while_it_writes_leaves_the_other_whole(
    deployment: Deployment, job: Job, tables: TablesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sees before a commit, it does not mix."""
    replace = Tables.replace

    def replaced(self: Tables, table: Any, *rest: Any, **options: Any) -> None:
        replace(self, table, *rest, **options)
        if table == "raw_requests":
            monkeypatch.setattr(Tables, "replace", replace)
            write(deployment, good=20, bad=0)
            take_in(job, deployment, tables(job), "all")

    monkeypatch.setattr(Tables, "replace", replaced)
    with pytest.raises(TableError, match="Another run of batch"):
        take_in(job, deployment, tables(job), "all")
    assert counts(tables(job)) == (20, 0, 20)
    assert sort_requests(deployment.model(MODEL), tables(job), "all", block_size=32).requests == 20


def test_requests_replaced_while_they_are_sorted(
    deployment: Deployment, job: Job, tables: TablesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage 2 writes nothing of requests that are no longer there."""
    take_in(job, deployment, tables(job), "all")
    tokenised = sorting.tokenised

    def and_another(*arguments: Any) -> Any:
        found = tokenised(*arguments)
        write(deployment, good=20, bad=0)
        take_in(job, deployment, tables(job), "all")
        return found

    monkeypatch.setattr(sorting, "tokenised", and_another)
    with pytest.raises(TableError, match="Another run of batch"):
        sort_requests(deployment.model(MODEL), tables(job), "all", block_size=32)
    assert tables(job).count("request_map") == 0
