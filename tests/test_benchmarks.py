"""The benchmarks' own parts: seeded data of the promised shape, and work in fresh processes."""

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from support import REPOSITORY, take_files

from benchmarks.data import SETS, request_file, request_lines
from benchmarks.measure import Step, alternate, run


def first_message(line: bytes) -> str:
    return json.loads(line)["body"]["messages"][0]["content"]


def distinct(lines: list[bytes]) -> int:
    return len({line.partition(b'"method"')[2] for line in lines})


@pytest.mark.parametrize("name", SETS)
def test_a_seed_makes_the_same_requests(name: str) -> None:
    """The same seed gives the same lines however many are asked for; another seed gives others."""
    lines = list(request_lines(SETS[name], 50))
    assert lines == list(islice(request_lines(SETS[name], 2_500), 50))
    assert lines != list(request_lines(SETS[name], 50, seed=8))


@pytest.mark.parametrize("name", SETS)
def test_every_line_is_a_valid_request(name: str, tmp_path: Path) -> None:
    """The package takes all rows, packed or not, and the size is that of the JSONL."""
    plain, packed = tmp_path / "plain.jsonl", tmp_path / "packed.jsonl.gz"
    assert request_file(name, 300, str(plain))() == plain.stat().st_size
    assert request_file(name, 300, str(packed))() == plain.stat().st_size
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    taken = take_files([packed], None)
    assert (taken.input_rows, taken.requests.height) == (300, 300)


def test_the_shapes_of_the_sets() -> None:
    """Twenty uneven groups, one that is half, one rubric, and nothing shared."""
    rows = 4_000
    lines = {name: list(request_lines(data_set, rows)) for name, data_set in SETS.items()}
    groups = {name: Counter(map(first_message, some)) for name, some in lines.items()}
    assert [len(groups[name]) for name in ("three", "half", "seed")] == [20, 20, 1]
    assert groups["three"].most_common(1)[0][1] / rows == pytest.approx(0.28, abs=0.03)
    assert groups["half"].most_common(1)[0][1] / rows == pytest.approx(0.5, abs=0.03)
    assert max(groups["flat"].values()) == 1
    bodies = {
        name: {line.partition(b'"method"')[2] for line in some} for name, some in lines.items()
    }
    assert 1 - len(bodies["three"]) / rows == pytest.approx(0.06, abs=0.02)
    assert len(bodies["seed"]) == rows


def test_work_is_done_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Steps are done as often as asked, what they return comes back, what they need is seen."""
    file = tmp_path / "flat.jsonl"
    steps = [
        Step("benchmarks.data", "request_file", {"name": "flat", "rows": rows, "file": str(file)})
        for rows in (10, 400)
    ]
    taken = alternate(steps, 2)
    assert [len(some) for some in taken] == [2, 2]
    assert taken[0][0].result == taken[0][1].result < taken[1][0].result
    assert all(one.cpu > 0 and 0.01 < one.peak_gb < 2 for some in taken for one in some)


def test_work_that_fails_says_why() -> None:
    """The error of a step names it and holds what the process wrote."""
    with pytest.raises(RuntimeError, match=r"request_file failed:\n(.*\n)+KeyError: 'none'"):
        run(
            Step(
                "benchmarks.data", "request_file", {"name": "none", "rows": 1, "file": "/dev/null"}
            )
        )


def test_measures_come_as_one_object(tmp_path: Path, model_path: Path) -> None:
    """The named measures, what was skipped and why, and the record, on a handful of rows."""
    asked = ["hit_prediction_error", "peak_gb_bounded", "shard_loss_half"]
    arguments = [*("--rows", "80", "--json", "--folder", str(tmp_path)), *asked]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.prepare", "--model", str(model_path), *arguments],
        cwd=REPOSITORY,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)
    assert found["hit_prediction_error"] == 0
    assert 0 <= found["shard_loss_half"] <= 1 <= found["shard_imbalance_half"]
    assert found["record"]["data_three"]["rows"] == 80
    assert "peak_gb_bounded" in {**found, **found["skipped"]}
