"""The lengths of answers that a plan expects."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from support import Declare
from support_planner import declared, deployed, fill, planned

from acdc_dagster.deployment import Deployment
from acdc_dagster.planning import answers
from acdc_dagster.planning.answers import ExpectedAnswers, drawn, expected_answers
from acdc_dagster.schemas import row_schema
from acdc_dagster.tables import Tables

TODAY, BEFORE = "2026-11-03", "2026-11-02"
CAPS = np.full(2000, 200)


@pytest.fixture
def tables(deployment: Deployment) -> Tables:
    """Of a job."""
    return Tables(deployment.tables_root, "job")


def answered(
    tables: Tables, partition: str, tokens: list[int], version: str = "v1", **own: Any
) -> None:
    """Results of a partition with answers of so many tokens; the hashes are spread evenly."""
    hashes = [f"{number * 16**8 // len(tokens):08x}" for number in range(len(tokens))]
    results = [
        {
            "request_hash": name,
            "attempt": 1,
            "completion_tokens": count,
            "finish_reason": "stop",
            **own,
        }
        for name, count in zip(hashes, tokens, strict=True)
    ]
    mapped = [
        {"custom_id": name, "request_hash": name, "input_rows": 1, "prompt_version": version}
        for name in hashes
    ]
    tables.replace("inference", partition, pl.DataFrame(results, schema=row_schema("inference")))
    tables.replace("request_map", partition, pl.DataFrame(mapped, schema=row_schema("request_map")))


def expected(tables: Tables) -> ExpectedAnswers:
    return expected_answers(tables, TODAY, "v1", CAPS)


def test_nothing_measured_is_as_long_as_allowed(tables: Tables) -> None:
    """Also if there are too few answers, or only the partition's own."""
    assert (expected(tables).tokens == CAPS).all()
    answered(tables, BEFORE, [10] * 20)
    answered(tables, TODAY, [10] * 60)
    found = expected(tables)
    assert (found.tokens == CAPS).all()
    assert found.cut is None


def test_other_partitions_tell_the_lengths(tables: Tables) -> None:
    """Those of the same prompt version; if there are none, those of another, and it is said."""
    answered(tables, "2026-11-01", [90] * 60, version="v0")
    other = expected(tables)
    assert other.tokens.mean() == 90
    assert "another prompt version" in other.source
    answered(tables, BEFORE, [10, 30] * 60)
    found = expected(tables)
    assert found.tokens.mean() == pytest.approx(20, abs=1)
    assert (found.cut, found.source) == (0, "120 answers of 1 other partition(s)")


def test_answers_that_were_cut_are_no_short_ones(tables: Tables) -> None:
    """A third was cut at 20; under today's cap of 200 they are taken to be longer."""
    answered(tables, "2026-11-01", [10, 30] * 50)
    answered(tables, BEFORE, [20] * 50, finish_reason="length")
    found = expected(tables)
    assert found.cut == pytest.approx(1 / 3)
    shares = {int(value): float((found.tokens == value).mean()) for value in set(found.tokens)}
    # 50 of 150 ended at 10. All others were longer than 20, and those that ended, at 30.
    assert shares[10] == pytest.approx(1 / 3, abs=0.04)
    assert shares[30] == pytest.approx(2 / 3, abs=0.04)
    answered(tables, "2026-11-01", [400] * 60, finish_reason="length")
    assert (expected(tables).tokens == CAPS).all()


def test_the_draw_is_the_product_limit_estimate() -> None:
    """By hand: of 2, 3+, 4, 5+, 6 a fifth is 2, 4/15 is 4 and 8/15 is 6 (+ is cut)."""
    found = drawn(np.array([2, 4, 6]), np.array([3, 5]), 100_000)
    shares = [float((found == value).mean()) for value in (2, 4, 6)]
    assert shares == pytest.approx([1 / 5, 4 / 15, 8 / 15], abs=0.01)
    beyond = drawn(np.array([2]), np.array([2]), 10_000)
    assert (beyond > 10**9).mean() == pytest.approx(0.5, abs=0.02)


def test_an_answer_counts_once_by_its_last_attempt(tables: Tables) -> None:
    """A row that is asked again with a larger cap has the length of what it got then."""
    answered(tables, BEFORE, [20] * 60, finish_reason="length")
    first = tables.read("inference", BEFORE).drop("partition_key")
    again = first.with_columns(
        pl.lit(2, pl.Int32).alias("attempt"),
        pl.lit(50, pl.Int32).alias("completion_tokens"),
        pl.lit("stop").alias("finish_reason"),
    )
    tables.replace("inference", BEFORE, pl.concat([again, first]))
    found = expected(tables)
    assert (set(found.tokens.tolist()), found.cut) == ({50}, 0)
    assert found.source.startswith("60 answers")


def test_of_a_large_partition_a_uniform_part_is_read(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not its beginning, where neighbours in prefix order are alike."""
    monkeypatch.setattr(answers, "_MOST", 200)
    answered(tables, BEFORE, [10] * 500 + [100] * 500)
    by_chunk = tables.read("inference", BEFORE).drop("partition_key")
    spread = by_chunk.with_columns(pl.col("request_hash").reverse().shuffle(seed=1))
    tables.replace("inference", BEFORE, spread)
    found = expected(tables)
    seen = int(found.source.split()[0])
    assert 150 <= seen <= 250
    assert found.tokens.mean() == pytest.approx(55, abs=10)


def test_a_plan_takes_them_and_says_when_a_job_is_too_small(
    deployment: Deployment, declare: Declare
) -> None:
    """Shorter answers, a shorter run; where starting is all, the reasons say so."""
    job = declared(declare)
    tables = Tables(deployment.tables_root, job.name)
    there = deployed(deployment.root, {"pool": "H100:1"})
    fill(tables, rows=100_000, most=400)
    long = planned(job, there, tables)
    answered(tables, "other", [20] * 100, version=job.prompt_version)
    short = planned(job, there, tables)
    assert long.plan.predicted is not None
    assert short.plan.predicted is not None
    assert short.plan.predicted.seconds < 0.5 * long.plan.predicted.seconds

    def too_small(lines: list[str]) -> bool:
        return any("too small" in line for line in lines)

    assert not too_small(long.plan.why)
    fill(tables, rows=10)
    assert too_small(planned(job, there, tables).plan.why)
