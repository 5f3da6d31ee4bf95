"""The first stage as a whole: when it stops, and what it leaves behind."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import MODEL, Declare, request_line

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.requests import intake
from acdc_dagster.requests.stage import take_in
from acdc_dagster.spool import SpaceError
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]


def job_over(declare: Declare, good: int, bad: int, **attributes: Any) -> Job:
    """A job over a file with so many valid requests, and so many lines that are none after them."""
    lines = [request_line(f"r{n}") for n in range(good)] + [request_line(n) for n in range(bad)]
    source = {"requests": "assets/batch/in.jsonl"}
    return declare(
        "batch", {"source": source, "model": MODEL, **attributes}, in_dot_jsonl="\n".join(lines)
    )


@pytest.mark.parametrize(
    ("limit", "good", "bad"),
    [
        (None, 1, 10),
        (None, 380, 20),
        (0, 5, 0),
        (3, 5, 3),
        (0.25, 3, 1),
        (1.0, 1, 30),
        (None, 0, 0),
        (0, 0, 0),
    ],
)
def test_some_rows_may_be_rejected(
    deployment: Deployment,
    declare: Declare,
    tables: TablesOf,
    limit: float | None,
    good: int,
    bad: int,
) -> None:
    """Up to the declared count or share; without one up to 10 rows, or 5 % of them."""
    job = job_over(declare, good, bad, max_rejected=limit)
    stats = take_in(job, deployment, tables(job), "all")
    assert (stats.requests, stats.rejected) == (good, bad)
    assert tables(job).count("raw_requests") == good
    assert tables(job).count("rejected") == bad


@pytest.mark.parametrize(
    ("limit", "good", "bad"),
    [
        (None, 1, 11),
        (None, 379, 21),
        (0, 5, 1),
        (1, 100, 2),
        (0.25, 2, 1),
        (0.0, 100, 1),
        (None, 0, 1),
        (5, 0, 5),
        (1.0, 0, 5),
    ],
)
def test_more_stop_the_stage(
    deployment: Deployment,
    declare: Declare,
    tables: TablesOf,
    limit: float | None,
    good: int,
    bad: int,
) -> None:
    """All rejected rows can be looked at then, and the requests of the last run stay."""
    before = job_over(declare, 2, 0)
    take_in(before, deployment, tables(before), "all")
    job = job_over(declare, good, bad, max_rejected=limit)
    with pytest.raises(SourceError, match=f"^{bad} of {good + bad} rows") as caught:
        take_in(job, deployment, tables(job), "all")
    assert tables(job).count("raw_requests") == 2
    assert tables(job).count("rejected") == bad
    assert f"(invalid_custom_id: {bad})" in caught.value.problem
    first = [f"in.jsonl:{good + n + 1}: custom_id must be a string, not {n}" for n in range(bad)]
    assert all(said in caught.value.problem for said in first[:3])
    assert len(caught.value.problem.splitlines()) == 1 + min(bad, 3)
    assert tables(job).uri("rejected") in caught.value.remedy
    assert ("max_rejected" in caught.value.remedy) == (good > 0)


@pytest.mark.parametrize("as_share", [False, True])
def test_what_the_message_tells_to_declare_is_enough(
    deployment: Deployment, declare: Declare, tables: TablesOf, as_share: bool
) -> None:
    """The count or the share that the remedy names lets the stage run."""
    job = job_over(declare, 200, 17)
    with pytest.raises(SourceError) as caught:
        take_in(job, deployment, tables(job), "all")
    assert "to 17 (rows) or 0.08 (a share of the rows)" in caught.value.remedy
    job = job_over(declare, 200, 17, max_rejected=0.08 if as_share else 17)
    assert take_in(job, deployment, tables(job), "all").rejected == 17


def test_contradicting_rows_count_as_rejected(
    deployment: Deployment, declare: Declare, tables: TablesOf
) -> None:
    """What only the whole source shows, such as an id with two bodies, counts too."""
    lines = [request_line(f"r{n % 6}", f"Question {n}") for n in range(12)]
    source = {"requests": "assets/batch/in.jsonl"}
    job = declare(
        "batch",
        {"source": source, "model": MODEL},
        in_dot_jsonl="\n".join([*lines, request_line()]),
    )
    with pytest.raises(SourceError, match=r"12 of 13 rows .*duplicate_custom_id: 12"):
        take_in(job, deployment, tables(job), "all")
    assert tables(job).read("rejected")["byte_offset"].null_count() == 0


def test_a_full_disk_names_the_folder_for_temporary_files(
    deployment: Deployment,
    declare: Declare,
    tables: TablesOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the ids of many rows cannot be kept beside memory, TMPDIR is what to change."""
    monkeypatch.setattr(intake, "_HELD", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    job = job_over(declare, 20, 0)
    with pytest.raises(SpaceError, match="gone") as caught:
        take_in(job, deployment, tables(job), "all")
    assert "TMPDIR" in caught.value.remedy
    assert tables(job).count("raw_requests") == 0


_KILLED = """
import os, signal, sys
from pathlib import Path
from acdc_dagster.deployment import Deployment
from acdc_dagster.requests import intake, stage
from acdc_dagster.requests.files import jsonl
from acdc_dagster.tables import Tables

intake._HELD = 100
spill, spilled = intake._Ids._spill, []
stage.RequestFiles = lambda files, model, listed: jsonl.RequestFiles(files, model, 20_000)

def die_at_the_fifth(ids):
    spill(ids)
    spilled.append(ids)
    if len(spilled) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

intake._Ids._spill = die_at_the_fifth
deployment = Deployment.load(Path(sys.argv[1]), "local")
stage.take_in(deployment.job("batch"), deployment, Tables(deployment.tables_root, "batch"), "all")
"""


def test_a_killed_stage_leaves_nothing_behind(
    deployment: Deployment, declare: Declare, tables: TablesOf, tmp_path: Path
) -> None:
    """After kill -9 the partition is as it was, no temporary file is left, a re-run is whole."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = job_over(declare, 2, 0)
    take_in(before, deployment, tables(before), "all")
    job = job_over(declare, 2000, 1)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(deployment.root)],
        env={**os.environ, "TMPDIR": str(temporary)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert tables(job).count("raw_requests") == 2
    assert list(temporary.iterdir()) == []
    take_in(job, deployment, tables(job), "all")
    assert tables(job).count("raw_requests") == 2000
    assert tables(job).count("rejected") == 1
