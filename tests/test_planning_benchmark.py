"""The benchmark of the planner, without the tables that others measured."""

import json
import subprocess
import sys

import pytest
from support import REPOSITORY


def test_a_quick_run_gives_the_tables() -> None:
    """Rates for each layout and length, and what the paper says of them."""
    command = [sys.executable, "-m", "benchmarks.planning", "--quick", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    best = {
        what: [row["best of the paper's"] for row in found[f"paper_{what}"]]
        for what in ("prefill", "decode")
    }
    assert (best["prefill"][0], best["prefill"][-1]) == ("T1-D8-E8", "T8-D1-E8")
    longest = found["paper_decode"][-1]
    assert longest["T8-D1-E8"] < 0.67 * longest["T4-D2-E8"]
    assert found["planning_time"][0]["candidates"] >= 200
    short, *_, long = found["speculation"]
    assert max(short[drafts] for drafts in "123458") < 1 < long["4"]
    assert found["idle"][0]["by_formula"] == pytest.approx(0.634, abs=0.0005)
    assert "operators" not in found
