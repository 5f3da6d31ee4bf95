"""Incremental reading gives what a full read gives, or reads in full and says why."""

import random
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from support import Declare
from support_table import over_table

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, SourceError
from acdc_dagster.job import Job
from acdc_dagster.requests.stage import RawStats, take_in
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]
Take = Callable[[], RawStats]
DAYS = [date(2026, 11, 1), date(2026, 11, 2)]
BY_DAY: dict[str, Any] = {"cadence": "daily", "start": DAYS[0], "end": date(2026, 11, 3)}
SCHEMA = pl.Schema({"id": pl.String, "title": pl.String, "price": pl.Float64, "day": pl.Date})


def rows_of(ids: list[Any], title: str | None = "new", day: date = DAYS[0]) -> pl.DataFrame:
    """Rows of the source with these ids."""
    rows = [{"id": key, "title": title, "price": 1.5, "day": day} for key in ids]
    return pl.DataFrame(rows, schema=SCHEMA)


def write(place: Path, rows: pl.DataFrame, **options: Any) -> None:
    """Append to the source."""
    write_deltalake(str(place), rows, mode="append", **options)


class Changes:
    """Random changes of a source table, as its writers make them."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place = place
        self.random = random.Random(seed)
        self.next = 0

    def rows(self, ids: list[str]) -> pl.DataFrame:
        """Rows with these ids, some without a title."""
        titles = ["red", "green", "blue", None]
        return pl.concat(
            [
                pl.DataFrame(schema=SCHEMA),
                *(
                    rows_of([key], self.random.choice(titles), self.random.choice(DAYS))
                    for key in ids
                ),
            ]
        )

    def append(self) -> None:
        """New ids."""
        count = self.random.randint(1, 12)
        write(self.place, self.rows([f"r{self.next + n}" for n in range(count)]))
        self.next += count

    def merge(self) -> None:
        """Some known ids change, also their day, and some are new."""
        first = self.random.randrange(self.next)
        ids = [f"r{n}" for n in range(first, min(first + 5, self.next + 2))]
        self.next = max(self.next, first + len(ids))
        merging = DeltaTable(str(self.place)).merge(
            self.rows(ids), "s.id = t.id", source_alias="s", target_alias="t"
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    def delete(self) -> None:
        """Some ids go."""
        some = ", ".join(f"'r{self.random.randrange(self.next)}'" for _ in range(3))
        DeltaTable(str(self.place)).delete(f"id IN ({some})")

    def compact(self) -> None:
        """The files are written anew, and the rows stay."""
        DeltaTable(str(self.place)).optimize.compact()

    def overwrite(self) -> None:
        """One day is written anew, in another order."""
        day = self.random.choice(DAYS)
        rows = pl.read_delta(str(self.place)).filter(day=day).reverse()
        write_deltalake(str(self.place), rows, mode="overwrite", predicate=f"day = '{day}'")

    def any(self) -> None:
        """One of these."""
        change = self.random.choice(
            [self.append, self.append, self.merge, self.delete, self.compact, self.overwrite]
        )
        change()


def content(tables: Tables, partition: str) -> tuple[list[Any], list[Any]]:
    """What a partition asks, and what it rejects."""
    raw = tables.read("raw_requests", partition).select("custom_id", "body", "input_rows")
    rejected = tables.read("rejected", partition).select("custom_id", "code", "original")
    return sorted(raw.rows()), sorted(rejected.rows())


@pytest.mark.parametrize("split_by", [None, "day"])
@pytest.mark.parametrize("partition", ["all", "2026-11-02"])
@pytest.mark.parametrize("seed", range(2))
def test_it_gives_what_a_full_read_gives(
    deployment: Deployment,
    declare: Declare,
    tables: TablesOf,
    split_by: str | None,
    partition: str,
    seed: int,
) -> None:
    """After any changes of the table; and most runs carry rows over instead of reading all."""
    place = deployment.root / "items"
    cut = {"partition_column": "day"} if partition != "all" else {}
    declared = {"partitions": BY_DAY} if cut else {}
    prompt = "{{ title }} {{ price }} {{ day }}"
    changes = Changes(place, seed)
    write(place, changes.rows([f"r{n}" for n in range(60)]), partition_by=split_by)
    changes.next = 60
    limit = {"max_rejected": 0.9}
    carried = 0
    for _ in range(5):
        found: list[tuple[RawStats, Any]] = []
        for name, incremental in (("a", True), ("b", False)):
            source = {**cut, "incremental": incremental}
            job = over_table(declare, prompt=prompt, source=source, **declared, **limit)
            into = Tables(deployment.tables_root, name)
            stats = take_in(job, deployment, into, partition)
            found.append((stats, content(into, partition)))
            lines = into.read("raw_requests", partition)["line"]
            assert lines.n_unique() == lines.len()
        (one, what), (other, expected) = found
        assert what == expected
        assert (one.input_rows, one.requests, one.rejected_codes) == (
            other.input_rows,
            other.requests,
            other.rejected_codes,
        )
        assert one.warnings == []
        carried += one.carried
        for _ in range(changes.random.randint(0, 3)):
            changes.any()
    assert carried > 0


@pytest.fixture
def take(deployment: Deployment, declare: Declare, tables: TablesOf) -> Callable[..., RawStats]:
    """Takes the table in incrementally."""

    def run(prompt: str = "{{ title }}", **attributes: Any) -> RawStats:
        source = {"incremental": True}
        attributes = {"max_rejected": 0.9, **attributes}
        job = over_table(declare, prompt=prompt, source=source, **attributes)
        return take_in(job, deployment, tables(job), "all")

    return run


@pytest.fixture
def place(deployment: Deployment) -> Path:
    """A table of two files with five rows each."""
    place = deployment.root / "items"
    write(place, rows_of([f"a{n}" for n in range(5)]))
    write(place, rows_of([f"b{n}" for n in range(5)]))
    return place


def in_full(stats: RawStats, why: str) -> None:
    """The run read the whole table, and said so."""
    assert stats.carried == 0
    assert stats.warnings[0].startswith("The source table was read in full, not only what changed:")
    assert why in stats.warnings[0]


def test_only_what_changed_is_made_anew(
    take: Callable[..., RawStats], place: Path, declare: Declare, tables: TablesOf
) -> None:
    """Rows of files that stay keep their line; others get one after all lines there were."""
    assert take().carried == 0
    DeltaTable(str(place)).delete("id = 'b0'")
    stats = take()
    assert (stats.input_rows, stats.requests, stats.carried, stats.warnings) == (9, 9, 5, [])
    job = over_table(declare)
    lines = tables(job).read("raw_requests", "all").sort("custom_id")["line"]
    assert lines[:5].to_list() == [1, 2, 3, 4, 5] or lines[:5].to_list() == [6, 7, 8, 9, 10]
    assert sorted(lines[5:]) == [11, 12, 13, 14]
    assert tables(job).count("source_chunks") == 0


def test_what_stays_is_not_read(take: Callable[..., RawStats], place: Path) -> None:
    """The files of rows that stay may even be gone."""
    take()
    files = [Path(uri) for uri in DeltaTable(str(place)).file_uris()]
    for file in files:
        file.unlink()
    write(place, rows_of(["c"]))
    stats = take()
    assert (stats.carried, stats.input_rows) == (10, 11)


def test_all_rows_may_go(take: Callable[..., RawStats], place: Path) -> None:
    """The partition is empty then."""
    take()
    DeltaTable(str(place)).delete()
    assert (take().input_rows, take().requests) == (0, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "It is {{ title }}"},
        {"sampling": {"temperature": 1}},
        {"answer_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
    ],
)
def test_another_question_is_asked_of_all_rows(
    take: Callable[..., RawStats], place: Path, other: dict[str, Any]
) -> None:
    """A row that stands there unchanged becomes another request."""
    take()
    write(place, rows_of(["c"]))
    in_full(take(**other), "the prompt, the schema, the sampling")
    assert take(**other).carried == 11
    in_full(take(), "the prompt, the schema, the sampling")


def test_other_columns_are_read_in_full(take: Callable[..., RawStats], place: Path) -> None:
    """What a null means may have changed with them."""
    take()
    write(place, rows_of(["c"]).with_columns(size=pl.lit(1)), schema_mode="merge")
    in_full(take(), "its columns changed since version 1")
    assert take().carried == 11


def test_files_that_vacuum_deleted_are_read_in_full(
    take: Callable[..., RawStats], place: Path
) -> None:
    """Which ids stood in them, nobody can tell."""
    take()
    table = DeltaTable(str(place))
    table.delete("id = 'b0'")
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    in_full(take(), "")
    assert take().carried == 9


def test_deletion_vectors_are_read_in_full(
    take: Callable[..., RawStats], deployment: Deployment
) -> None:
    """A file that stays may hold fewer rows than before."""
    vectors = {"delta.enableDeletionVectors": "true"}
    write(deployment.root / "items", rows_of(["a", "b"]), configuration=vectors)
    assert take().warnings == []
    write(deployment.root / "items", rows_of(["c"]))
    in_full(take(), "deletionVectors")


def test_a_table_made_anew_is_read_in_full(
    take: Callable[..., RawStats], place: Path, deployment: Deployment
) -> None:
    """It has versions of its own."""
    take()
    place.rename(deployment.root / "old")
    for key in "abc":
        write(place, rows_of([key]))
    in_full(take(), "the source")


def test_a_log_that_is_gone_is_read_in_full(take: Callable[..., RawStats], place: Path) -> None:
    """The version of the last run cannot be opened."""
    take()
    write(place, rows_of(["c"]))
    DeltaTable(str(place)).create_checkpoint()
    for version in range(2):
        (place / "_delta_log" / f"{version:020}.json").unlink()
    in_full(take(), "")


@pytest.mark.parametrize("ids", [["c", "c"], ["a0"], [None]])
def test_ids_that_only_the_whole_table_can_judge(
    take: Callable[..., RawStats],
    place: Path,
    deployment: Deployment,
    declare: Declare,
    tables: TablesOf,
    ids: list[Any],
) -> None:
    """An id that comes twice, is there already or is none: the result is that of a full read."""
    take()
    write(place, rows_of(ids, title="other"))
    in_full(take(), "id")
    full = over_table(declare, max_rejected=0.9)
    into = Tables(deployment.tables_root, "full")
    take_in(full, deployment, into, "all")
    assert content(tables(full), "all") == content(into, "all")
    # What stays of it does not stand in the way of the next run, what goes does.
    write(place, rows_of(["d"]))
    assert take().carried > 0
    DeltaTable(str(place)).delete("title = 'other'")
    in_full(take(), "id" if ids != [None] else "no id")
    assert content(tables(full), "all")[1] == []


def test_a_run_that_was_killed_between_its_tables_is_no_base(
    take: Callable[..., RawStats], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """raw_requests and rejected must be of one version."""
    take()
    write(place, rows_of(["c"], title=None))

    class KilledError(Exception):
        pass

    replace = Tables.replace

    def killed(self: Tables, name: Any, *rest: Any, **options: Any) -> None:
        if name == "rejected":
            raise KilledError
        replace(self, name, *rest, **options)

    monkeypatch.setattr(Tables, "replace", killed)
    with pytest.raises(KilledError):
        take()
    monkeypatch.setattr(Tables, "replace", replace)
    write(place, rows_of(["d"]))
    stats = take()
    in_full(stats, "did not get to its end")
    assert (stats.input_rows, stats.rejected) == (12, 1)


def test_too_many_rejected_rows_stop_it_as_they_stop_a_full_read(
    take: Callable[..., RawStats], place: Path
) -> None:
    """And the rejected rows of the run that stopped are no base for the next one."""
    take(max_rejected=0)
    write(place, rows_of(["c"], title=None))
    with pytest.raises(SourceError, match="1 of 11 rows"):
        take(max_rejected=0)
    DeltaTable(str(place)).delete("id = 'c'")
    stats = take(max_rejected=0)
    in_full(stats, "did not get to its end")
    assert (stats.input_rows, stats.rejected) == (10, 0)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"table": "items.parquet"}, "incremental needs a Delta table"),
        ({"make_ids": True}, "incremental needs id_column"),
        ({"version": 1}, "leave version out"),
        ({"table": "items/{partition}"}, "partition_column instead of"),
    ],
)
def test_what_cannot_be_read_incrementally_is_refused(
    declare: Declare, source: dict[str, Any], why: str
) -> None:
    """Where the declaration is read, before anything runs."""
    with pytest.raises(DeclarationError, match=why):
        over_table(declare, source={"incremental": True, **source})


def test_split_texts_are_refused(declare: Declare) -> None:
    """Their ids are those of chunks."""
    split = {"split": {"column": "title", "tokens": 100}}
    with pytest.raises(DeclarationError, match="leave one out"):
        over_table(declare, source={"incremental": True}, too_long=split)
