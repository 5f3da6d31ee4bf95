"""CSV files as a table: what a record is, and that a bad line costs no other row."""

import gzip
import random

import polars as pl
import pytest
from support import Declare
from support_table import contents, drain, open_source, over_table

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError
from acdc_dagster.requests.lines import Lines
from acdc_dagster.requests.tables.csv_records import records


def bad_lines(
    deployment: Deployment, declare: Declare, content: bytes
) -> tuple[dict[str, str], list[tuple[int, str, bytes]]]:
    """The requests of a file, and of each rejection: line, the message's beginning, original."""
    (deployment.root / "items.csv").write_bytes(content)
    taken = drain(open_source(over_table(declare, "items.csv"), deployment))
    assert taken.input_rows == taken.requests.height + len(taken.rejections)
    lines = sorted([*taken.requests["line"], *(r.line for r in taken.rejections)])
    assert lines == list(range(1, taken.input_rows + 1))
    assert {r.code for r in taken.rejections} <= {"invalid_csv_line"}
    told = [(r.line, r.message.split(" of ")[0], r.original) for r in taken.rejections]
    return contents(taken), sorted(told)


@pytest.mark.parametrize(
    "bad",
    [
        b"2,x,y",
        b"2",
        b'2,"x,y"z',
        b'2,"x" y',
        b'2,"never closed',
        b"2,\xff\xfe",
        b'2,"a\xff"',
    ],
    ids=["long", "short", "after a quote", "a word after", "open", "utf8", "quoted utf8"],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_a_bad_line_is_rejected_alone(
    deployment: Deployment, declare: Declare, bad: bytes, end: bytes
) -> None:
    """It is told with its line in the file and kept as it stands; its neighbours run."""
    lines = [b"id,title", b'1,"Pan, ""new"""', bad, b"3,Pot", b'4,"Lid"', b""]
    asked, told = bad_lines(deployment, declare, end.join(lines))
    assert asked == {"1": 'Pan, "new"', "3": "Pot", "4": "Lid"}
    assert told == [(2, "Line 3", bad)]


def test_many_bad_lines(deployment: Deployment, declare: Declare) -> None:
    """Bad lines beside each other and at both ends of the rows."""
    content = b'id,title\n"\n1,Pan\n2,"a"b\n\xff\n3\n4,"two\nlines"\n5,x,y\n6,"'
    asked, told = bad_lines(deployment, declare, content)
    assert asked == {"1": "Pan", "4": "two\nlines"}
    assert [line for line, _, _ in told] == [1, 3, 4, 5, 7, 8]
    assert [message for _, message, _ in told] == [f"Line {n}" for n in (2, 4, 5, 6, 9, 10)]


def test_a_quote_within_a_field_is_text(deployment: Deployment, declare: Declare) -> None:
    """A field is quoted if it begins with a quote; in any other, a quote is a character."""
    content = b'''id,title,more
1,5" pan,
2,"a ""b"", c",5" by 6"
3, "Lid","several
lines, 5"" wide"
4,5" pot,"open
and, closed"
"5"," ""x""",
6",7",
7,,
'''
    (deployment.root / "items.csv").write_bytes(content)
    job = over_table(declare, "items.csv", '[{{ title }}] {{ more | default("-") }}')
    taken = drain(open_source(job, deployment))
    assert contents(taken) == {
        "1": '[5" pan] -',
        "2": '[a "b", c] 5" by 6"',
        "3": '[ "Lid"] several\nlines, 5" wide',
        "4": '[5" pot] open\nand, closed',
        "5": '[ "x"] -',
        '6"': '[7"] -',
    }
    assert [(r.line, r.code) for r in taken.rejections] == [(7, "null_or_bad_field")]


def test_blank_lines_are_no_rows(deployment: Deployment, declare: Declare) -> None:
    """They are neither rows nor rejected, but a blank line in a quoted field is text."""
    content = b'\n\nid,title\n\n1,Pan\n  \n\r\n2,"Pot\n\nLid"\n\n'
    assert bad_lines(deployment, declare, content) == ({"1": "Pan", "2": "Pot\n\nLid"}, [])


def test_records_across_blocks(deployment: Deployment, declare: Declare) -> None:
    """A record of several lines is whole wherever the blocks of lines end."""
    count = 20_000
    records = [b'%d,"first ""%d""\n,\nthird"\n' % (number, number) for number in range(count)]
    asked, told = bad_lines(deployment, declare, b"id,title\n" + b"".join(records))
    assert told == []
    assert asked == {str(n): f'first "{n}"\n,\nthird' for n in range(count)}


def test_a_quote_that_is_never_closed_swallows_no_rows(
    deployment: Deployment, declare: Declare
) -> None:
    """However many lines follow, and wherever the next quote is."""
    count = 20_000
    rows = b"".join(b"%d,Pan %d\n" % (number, number) for number in range(count))
    content = b'id,title\nx,"open\n' + rows + b'y,"closed"\n'
    asked, told = bad_lines(deployment, declare, content)
    assert told == [(1, "Line 2", b'x,"open')]
    assert len(asked) == count + 1


@pytest.mark.parametrize("row", ['1,5" pan,"x', '1,5","x'], ids=["closed", "open"])
def test_a_quote_that_each_line_opens(row: str) -> None:
    """Each line is told as bad; none of them costs a look at all those after it."""
    count = 100_000
    text = pl.Series([*[row] * count, 'z"y'])
    blocks = [Lines("items.csv", n + 1, text[n : n + 16_384]) for n in range(0, count + 1, 16_384)]
    found = list(records(blocks))
    assert sum(part.text.len() for part in found) == 1  # the last: its quote is text
    assert [line.number for part in found for line in part.bad] == list(range(1, count + 1))


def _is_record(text: str) -> bool:
    """Character by character: a field in quotes ends with one, any other with its line."""
    state = "begin"
    for character in text:
        match state, character:
            case "quoted", '"':
                state = "closed"
            case "quoted", _:
                pass
            case "closed", '"':
                state = "quoted"
            case "closed" | "begin" | "plain", ",":
                state = "begin"
            case "closed", _:
                return False
            case _, "\n":
                return False
            case "begin", '"':
                state = "quoted"
            case _:
                state = "plain"
    return state != "quoted"


def _told_one_by_one(lines: list[str]) -> tuple[list[int], list[int]]:
    """Numbers of the lines that begin a record, and of those that belong to none."""
    begin: list[int] = []
    bad: list[int] = []
    at = 0
    while at < len(lines):
        odd = (n for n in range(at + 1, len(lines)) if lines[n].count('"') % 2)
        end = at if _is_record(lines[at]) else next(odd, at)
        if _is_record("\n".join(lines[at : end + 1])):
            begin.append(at + 1)
            at = end + 1
        else:
            bad.append(at + 1)
            at += 1
    return [number for number in begin if lines[number - 1].strip()], bad


def test_records_of_any_lines() -> None:
    """They are those that a look at each line by itself tells, however the lines come."""
    chance = random.Random(7)
    several = 0
    for _ in range(300):
        lines = [
            "".join(
                chance.choices(['"', '""', ",", "a", '5" p', '","', " "], k=chance.randrange(6))
            )
            for _ in range(chance.randint(1, 9))
        ]
        step = chance.randint(1, 9)
        blocks = [
            Lines("items.csv", start + 1, pl.Series(lines[start : start + step]))
            for start in range(0, len(lines), step)
        ]
        found = list(records(blocks))
        begin = [number for part in found for number in part.lines]
        bad = [line.number for part in found for line in part.bad]
        assert (begin, bad) == _told_one_by_one(lines), lines
        several += any("\n" in text for part in found for text in part.text)
    assert several > 10


def test_bad_utf8_late_in_a_long_file(deployment: Deployment, declare: Declare) -> None:
    """Rows before it are taken once, rows after it too."""
    count = 40_000
    lines = [b"%d,Pan" % number for number in range(count)]
    lines[30_000] = b"30000,P\xe4n"
    asked, told = bad_lines(deployment, declare, b"\n".join([b"id,title", *lines]))
    assert told == [(30_001, "Line 30002", b"30000,P\xe4n")]
    assert list(asked) == [str(number) for number in range(count) if number != 30_000]


def test_nothing_and_empty(deployment: Deployment, declare: Declare) -> None:
    """A field without text is null; one that is empty in quotes is empty text."""
    (deployment.root / "items.csv").write_text('id,title\n1,\n2,""\n,Pot\n')
    taken = drain(open_source(over_table(declare, "items.csv"), deployment))
    assert contents(taken) == {"2": ""}
    assert [(r.line, r.code) for r in taken.rejections] == [
        (1, "null_or_bad_field"),
        (3, "missing_required_parameter"),
    ]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("late", [b"", b"3,\xff\n"], ids=["utf8", "bad utf8"])
def test_packed_files_and_byte_order_marks(
    deployment: Deployment, declare: Declare, bom: bytes, late: bytes
) -> None:
    """A file may be packed with gzip and begin with a byte order mark; a field may too."""
    content = bom + b"id,title\n\xef\xbb\xbf1,Pan\n" + late
    (deployment.root / "items.csv.gz").write_bytes(gzip.compress(content))
    taken = drain(open_source(over_table(declare, "items.csv.gz"), deployment))
    assert contents(taken) == {"\ufeff1": "Pan"}
    assert len(taken.rejections) == bool(late)


def test_a_glob_has_a_header_a_file(deployment: Deployment, declare: Declare) -> None:
    """Files are read in the order of their names, each by its own header."""
    (deployment.root / "b.csv").write_text("title,more,id\nPot,x,2\nbad\n")
    (deployment.root / "a.csv").write_text("id,title\n1,Pan\n")
    job = over_table(declare, "*.csv")
    taken = drain(open_source(job, deployment))
    assert contents(taken) == {"1": "Pan", "2": "Pot"}
    assert taken.requests["line"].to_list() == [1, 2]
    (rejection,) = taken.rejections
    assert rejection.line == 3
    assert f"Line 3 of {deployment.root / 'b.csv'} has 1 field(s)" in rejection.message


def test_a_file_of_a_glob_without_a_column(deployment: Deployment, declare: Declare) -> None:
    """It is named."""
    (deployment.root / "a.csv").write_text("id,title\n1,Pan\n")
    (deployment.root / "b.csv").write_text("id,titel\n2,Pot\n")
    source = open_source(over_table(declare, "*.csv"), deployment)
    with pytest.raises(SourceError, match=r"b\.csv has no column 'title'"):
        drain(source)


def test_a_name_is_itself_before_it_is_a_pattern(deployment: Deployment, declare: Declare) -> None:
    """Brackets in a file's name are part of it."""
    (deployment.root / "items[1].csv").write_text("id,title\n1,Pan\n")
    (deployment.root / "items1.csv").write_text("id,title\n2,Pot\n")
    assert contents(drain(open_source(over_table(declare, "items[1].csv"), deployment))) == {
        "1": "Pan"
    }


@pytest.mark.parametrize("content", [b"\xffid,title\n1,x\n", b'id,"title\n1,x\n', b"\n\n"])
def test_a_header_that_is_none(deployment: Deployment, declare: Declare, content: bytes) -> None:
    """The first line must name the columns."""
    (deployment.root / "items.csv").write_bytes(content)
    with pytest.raises(SourceError, match="header"):
        open_source(over_table(declare, "items.csv"), deployment)


def test_a_header_that_names_a_column_twice(deployment: Deployment, declare: Declare) -> None:
    """Nobody can tell which is meant; columns without a name may be several."""
    (deployment.root / "items.csv").write_text("id,title,id\n1,a,2\n")
    with pytest.raises(SourceError, match=r"items\.csv has two columns 'id'"):
        open_source(over_table(declare, "items.csv"), deployment)
    assert bad_lines(deployment, declare, b"id,title,,\n1,a,b,c\n") == ({"1": "a"}, [])


def test_a_quote_in_a_header(deployment: Deployment, declare: Declare) -> None:
    """It is doubled as in any field, and is one in the column's name."""
    (deployment.root / "items.csv").write_text('"i""d",title\n1,a\n')
    job = over_table(declare, "items.csv", source={"id_column": 'i"d'})
    assert contents(drain(open_source(job, deployment))) == {"1": "a"}


def test_a_bad_line_is_in_every_partition(deployment: Deployment, declare: Declare) -> None:
    """Nobody can tell whose it is; it has a number among the rows of each."""
    (deployment.root / "items.csv").write_text("id,title,day\n1,a,mon\n2,b,tue\nbad\n3,c,mon\n")
    partitions = {"cadence": "static", "keys": ["mon", "tue"]}
    source = {"partition_column": "day"}
    job = over_table(declare, "items.csv", source=source, partitions=partitions)
    for day, lines, bad in (("mon", [1, 3], 2), ("tue", [1], 2)):
        taken = drain(open_source(job, deployment, day))
        assert taken.requests["line"].to_list() == lines
        assert [r.line for r in taken.rejections] == [bad]
