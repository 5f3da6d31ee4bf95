"""What is left of a shard, its order, and reading it from the tables."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from acdc_dagster.inference import left as left_module
from acdc_dagster.inference.left import Left, left_of, requests_of, starts_early
from acdc_dagster.planning.plan import Shard
from acdc_dagster.prefix.sequences import token_list
from acdc_dagster.tables import Tables

PARTITION = "p"


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(str(tmp_path / "tables"), "job")


def hash_of(position: int) -> str:
    return f"{(position * 2654435761) % 2**32:08x}{position:024x}"


def fill(tables: Tables, count: int, max_tokens: list[int] | None = None) -> None:
    """Sorted requests whose token ids tell their position, written in frames as stage 2 does."""
    wanted = max_tokens or [8] * count

    def frames() -> Iterator[pl.DataFrame]:
        for start in range(0, count, 700):
            at = range(start, min(start + 700, count))
            yield pl.DataFrame(
                {
                    "position": list(at),
                    "request_hash": [hash_of(n) for n in at],
                    "token_ids": [n.to_bytes(4, "little") * 2 for n in at],
                    "prompt_tokens": [2] * len(at),
                    "lcp": [n % 5 for n in at],
                    "max_tokens": [wanted[n] for n in at],
                    "sampling": ["{}"] * len(at),
                    "images": [[]] * len(at),
                    "image_tokens": [0] * len(at),
                },
                schema_overrides={"prompt_tokens": pl.Int32, "lcp": pl.Int32},
            )

    tables.replace("sorted_requests", PARTITION, frames())


def answer(tables: Tables, positions: list[int], partition: str = PARTITION) -> None:
    rows = [
        {"partition_key": partition, "request_hash": hash_of(n), "attempt": 1} for n in positions
    ]
    tables.appender("inference", "test").append(rows)


@pytest.mark.parametrize("compared", [2**21, 1000])
def test_what_is_left_is_what_has_no_result_anywhere(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, compared: int
) -> None:
    """Also when hashes are compared part by part, and for results of another partition."""
    monkeypatch.setattr(left_module, "_COMPARED", compared)
    fill(tables, 5000)
    answer(tables, list(range(0, 3000, 3)))
    answer(tables, [1001, 4999], partition="other")
    left = left_of(tables, PARTITION, Shard(number=1, start=1000, stop=4000))
    expected = [n % 3 != 0 or n >= 3000 for n in range(1000, 4000)]
    expected[1] = False
    assert left.wanted.tolist() == expected
    assert set(left.max_tokens.tolist()) == {8}
    assert left.lcp.tolist() == [n % 5 for n in range(1000, 4000)]


def test_requests_come_in_prefix_order_with_their_tokens(tables: Tables) -> None:
    """However the writer mixed the rows; with what each shares with the next one that is left."""
    fill(tables, 20_000)
    answer(tables, [7, 8, 12_345])
    left = left_of(tables, PARTITION, Shard(number=0, start=3, stop=19_000))
    read = list(requests_of(tables, PARTITION, left, at_once=4))
    positions = [n for n in range(3, 19_000) if n not in (7, 8, 12_345)]
    assert [token_list(r.token_ids, r.prompt_tokens)[0] for r in read] == positions
    assert read[0].request_hash == hash_of(3)
    # 6 is followed by 9: what 7, 8 and 9 share with their predecessors, at least
    assert read[3].next_lcp == min(7 % 5, 8 % 5, 9 % 5)
    assert read[4].next_lcp == 10 % 5


def of_lengths(lengths: list[int]) -> Left:
    count = len(lengths)
    return Left(
        "sorted_requests",
        Shard(number=0, start=0, stop=count),
        np.ones(count, np.bool_),
        np.array(lengths, np.int32),
        np.zeros(count, np.int32),
    )


def test_equal_lengths_keep_the_prefix_order() -> None:
    """Nothing is gained by moving any of them."""
    moved, _ = starts_early(of_lengths([16] * 100), at_once=8)
    assert moved.tolist() == []


def test_a_long_answer_at_the_end_starts_when_as_much_is_left_as_it_takes(
    tables: Tables,
) -> None:
    """1,000 requests of 10 tokens, 10 at a time, then one of 500: it starts about half-way."""
    lengths = [10] * 1000 + [500]
    moved, before = starts_early(of_lengths(lengths), at_once=10)
    assert moved.tolist() == [1000]
    remaining = sum(lengths[before[0] :]) / 10
    assert 490 <= remaining <= 500
    fill(tables, 1001, lengths)
    left = left_of(tables, PARTITION, Shard(number=0, start=0, stop=1001))
    order = [
        token_list(r.token_ids, 2)[0] for r in requests_of(tables, PARTITION, left, at_once=10)
    ]
    at = int(before[0])
    assert order == [*range(at), 1000, *range(at, 1000)]


@pytest.mark.parametrize("seed", range(10))
def test_the_batch_stays_full_to_the_end(seed: int) -> None:
    """With 1 % of the answers 50 times as long, list scheduling in this order wastes little."""
    chosen = np.random.default_rng(seed)
    lengths = np.where(chosen.random(4000) < 0.01, 1000, 20).tolist()
    places = 16

    def makespan(order: list[int]) -> float:
        ends = np.zeros(places)
        for row in order:
            ends[ends.argmin()] += lengths[row]
        return float(ends.max())

    moved, before = starts_early(of_lengths(lengths), at_once=places)
    key = np.arange(len(lengths), dtype=np.float64)
    key[moved] = before - 0.5
    ours = makespan(np.argsort(key, kind="stable").tolist())
    assert ours <= 1.03 * sum(lengths) / places
