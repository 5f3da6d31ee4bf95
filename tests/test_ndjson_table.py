"""NDJSON files as a table: each line by itself, whatever its neighbours are."""

import json

import pytest
from support import Declare
from support_table import contents, drain, open_source, over_table

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError


def test_lines_that_are_no_objects_are_rejected_alone(
    deployment: Deployment, declare: Declare
) -> None:
    """Each is told with its line and kept as it stands; blank lines are no rows."""
    lines = [b'{"id":"1","title":"Pan"}', b"", b'{"id":', b"[1]", b'{"id":"\xff"}', b"  "]
    (deployment.root / "items.jsonl").write_bytes(
        b"\r\n".join([*lines, b'{"title":"Pot","id":"2"}'])
    )
    taken = drain(open_source(over_table(declare, "items.jsonl"), deployment))
    assert contents(taken) == {"1": "Pan", "2": "Pot"}
    assert taken.requests["line"].to_list() == [1, 5]
    assert [(r.line, r.code, r.original) for r in taken.rejections] == [
        (2, "invalid_json_line", lines[2]),
        (3, "invalid_json_line", lines[3]),
        (4, "invalid_json_line", lines[4]),
    ]
    for rejection, line in zip(taken.rejections, (3, 4, 5), strict=True):
        assert rejection.message.startswith(f"Line {line} of {deployment.root / 'items.jsonl'} is")


@pytest.mark.parametrize("number", ["1e999", "9" * 5000])
def test_a_number_that_nothing_can_hold_is_said_to_be(
    deployment: Deployment, declare: Declare, number: str
) -> None:
    """It rejects its line alone, as a number and not as something else than an object."""
    (deployment.root / "items.ndjson").write_text(
        f'{{"id":"a","title":"Pan"}}\n{{"id":"b","title":{number}}}\n'
    )
    taken = drain(open_source(over_table(declare, "items.ndjson"), deployment))
    assert contents(taken) == {"a": "Pan"}
    (rejection,) = taken.rejections
    assert (rejection.line, rejection.code) == (2, "invalid_json_line")
    assert "out of range" in rejection.message
    assert "object" not in rejection.message


def test_lines_none_of_which_is_a_row_are_told_by_themselves(
    deployment: Deployment, declare: Declare
) -> None:
    """No column is said to be missing where no line has any."""
    (deployment.root / "items.ndjson").write_text('[1]\n{"id":\n')
    taken = drain(open_source(over_table(declare, "items.ndjson"), deployment))
    assert [found.line for found in taken.rejections] == [1, 2]


@pytest.mark.parametrize("table", ["items.ndjson", "items.csv"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_in_utf16_is_named_as_such(
    deployment: Deployment, declare: Declare, table: str, encoding: str
) -> None:
    """With what to save it as."""
    (deployment.root / table).write_bytes("\ufeffid,title\na,Pan\n".encode(encoding))
    with pytest.raises(SourceError, match="is in UTF-16") as caught:
        open_source(over_table(declare, table), deployment)
    assert "UTF-8" in caught.value.remedy


def test_a_value_reads_the_same_beside_any_other(deployment: Deployment, declare: Declare) -> None:
    """Types are those of each line; a missing or null field is null."""
    values = ["x", 7, 2**70, 1.0, True, {"a": [1]}, None]
    rows = [{"id": number, "title": value} for number, value in enumerate(values)]
    rows[1]["id"] = "one"
    text = "\n".join(map(json.dumps, [*rows, {"id": "last"}]))
    (deployment.root / "items.ndjson").write_text(text)
    taken = drain(open_source(over_table(declare, "items.ndjson"), deployment))
    expected = ["x", "7", str(2**70), "1.0", "True", "{'a': [1]}"]
    assert contents(taken) == dict(zip(["0", "one", *"2345"], expected, strict=True))
    assert [(r.custom_id, r.code) for r in taken.rejections] == [
        ("6", "null_or_bad_field"),
        ("last", "null_or_bad_field"),
    ]
    assert json.loads(taken.rejections[0].original) == {"id": 6, "title": None}


def test_a_column_that_appears_late(deployment: Deployment, declare: Declare) -> None:
    """A field is a column if any row has it, however far down; else it is told."""
    lines = [json.dumps({"id": number}) for number in range(20_000)]
    place = deployment.root / "items.ndjson"
    job = over_table(declare, "items.ndjson", prompt='{{ title | default("none") }}')
    place.write_text("\n".join([*lines, '{"id": "z", "title": "Pan"}']))
    taken = drain(open_source(job, deployment))
    assert (taken.input_rows, contents(taken)["z"], contents(taken)["1"]) == (20_001, "Pan", "none")
    place.write_text("\n".join(lines))
    with pytest.raises(SourceError, match="'title'"):
        open_source(job, deployment)


def test_partitions(deployment: Deployment, declare: Declare) -> None:
    """The partition column's value is compared as text, whatever type it has."""
    days = ["2024", 2024, 2025, None, 2024.0]
    rows = [{"id": f"r{i}", "title": "x", "day": day} for i, day in enumerate(days)]
    (deployment.root / "items.ndjson").write_text("\n".join(map(json.dumps, rows)))
    job = over_table(
        declare,
        "items.ndjson",
        source={"partition_column": "day"},
        partitions={"cadence": "static", "keys": ["2024", "2025"]},
    )
    taken = drain(open_source(job, deployment, "2024"))
    assert list(contents(taken)) == ["r0", "r1"]
    assert len(taken.warnings) == 1
    assert taken.warnings[0].startswith("1 row(s)")
