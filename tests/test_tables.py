"""Exactly-once appends and whole-partition replacement, on real Delta tables."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from polars.exceptions import ComputeError

from acdc_dagster import datafiles
from acdc_dagster.errors import ShardTakenError
from acdc_dagster.schemas import SCHEMAS, row_schema
from acdc_dagster.tables import TableError, Tables


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(str(tmp_path / "tables"), "job")


def result(request_hash: str) -> dict[str, object]:
    return {"partition_key": "p", "request_hash": request_hash, "text": "x", "attempt": 1}


def hashes(tables: Tables) -> list[str]:
    return sorted(tables.read("inference", "p")["request_hash"])


def mapped(custom_id: str) -> pl.DataFrame:
    row = {"custom_id": custom_id, "request_hash": "h", "line": 1, "input_rows": 1}
    return pl.DataFrame([row], schema=row_schema("request_map"))


def test_chunks_are_numbered_on_across_workers(tables: Tables) -> None:
    """A worker that starts after another goes on with the next number."""
    first = tables.appender("inference", "shard")
    first.append([result("a")])
    first.append([result("b")])
    second = tables.appender("inference", "shard")
    assert second.next_chunk == 2
    second.append([result("c")])
    assert hashes(tables) == ["a", "b", "c"]


def test_a_rival_on_the_same_shard_is_refused(tables: Tables) -> None:
    """Of two workers on one shard only one commits; the other writes nothing, then or later."""
    slow, fast = (tables.appender("inference", "shard") for _ in range(2))
    fast.append([result("a")])
    for _ in range(2):
        with pytest.raises(ShardTakenError, match="Another worker"):
            slow.append([result("a")])
    fast.append([result("b")])
    assert hashes(tables) == ["a", "b"]


def test_workers_of_different_shards_do_not_meet(tables: Tables) -> None:
    """Each shard has a transaction of its own."""
    one, two = (tables.appender("inference", f"shard-{n}") for n in range(2))
    one.append([result("a")])
    two.append([result("b")])
    one.append([result("c")])
    assert hashes(tables) == ["a", "b", "c"]


def test_a_refused_write_can_be_repeated(tables: Tables) -> None:
    """After a storage error the same chunk goes in once, under the same number."""
    appender = tables.appender("inference", "shard")
    log = Path(tables.uri("inference")) / "_delta_log"
    hidden = log.rename(log.with_name("hidden"))
    with pytest.raises(TableError, match="Could not write"):
        appender.append([result("a")])
    hidden.rename(log)
    appender.append([result("a")])
    assert hashes(tables) == ["a"]
    assert appender.next_chunk == 1


def test_replace_touches_one_partition_only(tables: Tables) -> None:
    """A partition is replaced whole, also by nothing; its neighbours stay; quotes are no syntax."""
    tables.replace("request_map", "it's", mapped("a"))
    tables.replace("request_map", "other", mapped("b"))
    tables.replace("request_map", "it's", mapped("c"))
    assert tables.read("request_map", "it's")["custom_id"].to_list() == ["c"]
    tables.replace("request_map", "it's", mapped("c").clear())
    assert tables.count("request_map", "it's") == 0
    assert tables.read("request_map", "other")["custom_id"].to_list() == ["b"]


def test_first_writers_at_once_keep_to_their_partitions(tables: Tables) -> None:
    """Also while the table is made, of one partition's writers one wins, and others all do."""

    def write(partition: str, custom_id: str) -> bool:
        try:
            tables.replace("request_map", partition, mapped(custom_id))
        except TableError:
            return False
        return True

    partitions = ["same"] * 4 + ["a", "b", "c"]
    with ThreadPoolExecutor(len(partitions)) as pool:
        written = list(pool.map(write, partitions, [f"id-{n}" for n in range(len(partitions))]))
    assert written[4:] == [True] * 3
    assert any(written[:4])
    assert [tables.count("request_map", name) for name in ("same", "a", "b", "c")] == [1] * 4


def test_the_two_stages_that_reject_replace_their_own_rows(tables: Tables) -> None:
    """raw_requests and sorted_requests each own a part of `rejected`."""
    row = dict.fromkeys(row_schema("rejected")) | {"source": "s", "line": 1, "input_rows": 1}
    rows = pl.DataFrame([row], schema=row_schema("rejected"))
    tables.replace("rejected", "p", rows, stage="raw_requests")
    tables.replace("rejected", "p", rows, stage="sorted_requests")
    tables.replace("rejected", "p", rows.clear(), stage="sorted_requests")
    assert tables.read("rejected", "p")["stage"].to_list() == ["raw_requests"]


def test_new_columns_join_the_outputs_of_older_partitions(tables: Tables) -> None:
    """A job whose answer schema grows keeps its older partitions readable."""
    common = SCHEMAS["outputs"]
    row = dict.fromkeys(name for name in common if name != "partition_key")
    tables.replace("outputs", "old", pl.DataFrame([row]), schema=common)
    wider = pl.Schema({**common, "colour": pl.String})
    tables.replace("outputs", "new", pl.DataFrame([{**row, "colour": "red"}]), schema=wider)
    assert tables.read("outputs", "new")["colour"].to_list() == ["red"]
    assert tables.read("outputs", "old")["colour"].to_list() == [None]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_table_that_is_not_there_reads_as_empty(tables: Tables, name: str) -> None:
    """Before the first run every table has its columns and no rows."""
    empty = tables.read(name, "p")  # type: ignore[arg-type]
    assert empty.is_empty()
    assert empty.schema == SCHEMAS[name]  # type: ignore[index]


KEYS = ["2026-11-30-00:00", "a b/c", "é%41", "x=y", "it's"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_partition_is_read_in_batches(tmp_path: Path, scheme: str) -> None:
    """All rows of the partition and no others, whatever its key, in the order of each file."""
    tables = Tables(f"{scheme}{tmp_path}", "job")
    for number, key in enumerate(KEYS):
        tables.replace("request_map", key, lines(range(number, number + 10)))
    for number, key in enumerate(KEYS):
        batches = list(tables.batches("request_map", key, 4))
        assert [batch.height for batch in batches] == [4, 4, 2]
        assert pl.concat(batches)["line"].to_list() == list(range(number, number + 10))
    assert list(tables.batches("request_map", "no such key", 4)) == []
    assert list(tables.batches("outputs", KEYS[0], 4)) == []


def lines(numbers: range) -> pl.DataFrame:
    """Rows of request_map."""
    return pl.DataFrame(
        [{"custom_id": f"{n}", "request_hash": "h", "line": n, "input_rows": 1} for n in numbers],
        schema=row_schema("request_map"),
    )


def test_frames_are_written_in_one_commit(tmp_path: Path) -> None:
    """Frames that are made while they are written become one version of the table."""
    tables = Tables(str(tmp_path), "job")
    tables.replace("request_map", "a", lines(range(3)))
    before = DeltaTable(tables.uri("request_map")).version()
    tables.replace("request_map", "a", (lines(range(n, n + 50)) for n in range(0, 1000, 50)))
    assert sorted(tables.read("request_map", "a")["line"]) == list(range(1000))
    assert DeltaTable(tables.uri("request_map")).version() == before + 1
    tables.replace("request_map", "a", iter([]))
    assert tables.count("request_map") == 0


@pytest.mark.parametrize("fault", [KeyError("gone"), ComputeError("gone"), OSError("gone")])
def test_frames_that_cannot_be_made_leave_the_table_as_it_was(
    tmp_path: Path, fault: Exception
) -> None:
    """What making them raises comes out as it is, no fault of the storage; nothing is committed."""
    tables = Tables(str(tmp_path), "job")
    tables.replace("request_map", "a", lines(range(3)))

    def frames() -> Iterator[pl.DataFrame]:
        yield lines(range(10))
        # Another table may be read while this one is written.
        assert tables.count("request_map") == 3
        raise fault

    with pytest.raises(type(fault), match="gone"):
        tables.replace("request_map", "a", frames())
    assert tables.count("request_map") == 3


def test_a_reader_that_stops_ends_the_maker_of_frames(tmp_path: Path) -> None:
    """If the storage refuses, the frames are not made to their end, and no thread is left."""
    tables = Tables(str(tmp_path), "job")
    made: list[int] = []

    def frames() -> Iterator[pl.DataFrame]:
        for number in range(10**6):
            made.append(number)
            yield lines(range(10))

    (tmp_path / "job").write_text("no folder")
    with pytest.raises(TableError):
        tables.replace("request_map", "a", frames())
    assert len(made) < 1000
    assert not [thread for thread in threading.enumerate() if thread.name == "frames"]


def test_a_table_of_an_earlier_version_gets_its_new_columns(tables: Tables) -> None:
    """A column that came later reads as null, before and after the next write adds it."""
    columns = row_schema("request_map").names()
    old = pl.DataFrame({"partition_key": ["a"], "custom_id": ["x"], "request_hash": ["h"]})
    write_deltalake(tables.uri("request_map"), old, partition_by="partition_key")
    assert tables.read("request_map", "a", columns).row(0) == ("x", "h", None, None, None)
    new = pl.DataFrame([("y", "g", 1, 2, "v")], schema=row_schema("request_map"), orient="row")
    tables.replace("request_map", "b", new)
    assert tables.read("request_map", "a", columns).row(0) == ("x", "h", None, None, None)
    assert tables.read("request_map", "b", columns).row(0) == ("y", "g", 1, 2, "v")


def test_large_rows_are_read_fewer_at_a_time(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has about so many bytes, however many rows are asked for; at least one row."""
    row = {"source": "f", "line": 1, "code": "c", "message": "m", "input_rows": 1}
    names = [f"{n}" for n in range(40)]
    large = [row | {"custom_id": n, "original": random.Random(n).randbytes(1000)} for n in names]
    rows = pl.DataFrame(large, schema=row_schema("rejected"))
    tables.replace("rejected", "p", rows, stage="raw_requests")
    for most, height in ((2**20, 16), (8_000, 7), (10, 1)):  # a row has a little over 1,000 bytes
        monkeypatch.setattr(datafiles, "_BATCH_BYTES", most)
        batches = list(tables.batches("rejected", "p", 16))
        assert max(batch.height for batch in batches) == height
        assert [name for batch in batches for name in batch["custom_id"]] == names


def test_a_later_column_is_null_where_rows_are_read_in_order(tables: Tables) -> None:
    """As where they are scanned; columns come as they are asked for."""
    rows = pl.DataFrame({"position": [0], "request_hash": ["h"], "partition_key": ["p"]})
    uri = tables.uri("sorted_requests")
    write_deltalake(uri, rows, partition_by=["partition_key"])
    asked = ["position", "images", "request_hash"]
    (frame,) = tables.in_order("sorted_requests", "p", asked, lambda _low, _high: True)
    assert frame.schema == {name: SCHEMAS["sorted_requests"][name] for name in asked}
    assert frame.rows() == [(0, None, "h")]
