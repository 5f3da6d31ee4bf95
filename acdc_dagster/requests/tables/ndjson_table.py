"""NDJSON files as a table: each line is a JSON object, and one that is none is told by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl

from acdc_dagster.requests.lines import Lines, read_lines
from acdc_dagster.requests.refused import Refused
from acdc_dagster.requests.tables.membership import Membership
from acdc_dagster.requests.tables.slices import BadLine, Slice, as_text

_CODE = "invalid_json_line"
_row = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class NdjsonTable:
    """Files of one JSON object a line; a field that an object lacks is null in its row.

    Args:
        place: Path, glob or URI.
        storage_options: For a URI.
    """

    place: str
    storage_options: dict[str, str]

    def columns(self, names: set[str]) -> list[str] | None:
        """The fields of the first rows, as many as it takes to find `names`; at least a block.

        None if there is no row, so that no field can be said to be missing.
        """
        found: dict[str, None] = {}
        any_row = False
        for lines in read_lines(self.place, self.storage_options):
            for row in _rows(lines)[0].values():
                any_row = True
                found.update(dict.fromkeys(row))
            if names <= found.keys():
                break
        return list(found) if any_row else None

    def slices(self, columns: list[str], membership: Membership | None) -> Iterator[Slice]:
        """As `Table` has it."""
        for lines in read_lines(self.place, self.storage_options):
            rows, bad = _rows(lines)
            if membership is not None:
                keys = as_text(_column([row.get(membership.column) for row in rows.values()]))
                member = membership.keep(keys)
                rows = {
                    n: row for (n, row), is_in in zip(rows.items(), member, strict=True) if is_in
                }
            if rows or bad:
                frame = pl.DataFrame(
                    {name: _column([row.get(name) for row in rows.values()]) for name in columns}
                )
                yield Slice.merged(frame, pl.Series([*rows], dtype=pl.Int64), bad)


def _rows(lines: Lines) -> tuple[dict[int, dict[str, Any]], list[BadLine]]:
    """The objects by the numbers of their lines; blank lines are none, and not bad."""
    rows: dict[int, dict[str, Any]] = {}
    bad: list[BadLine] = []
    for number, text in enumerate(lines.text, start=lines.first):
        if text is None:
            original, reason = lines.not_utf8[number - lines.first], "is not valid UTF-8"
        elif not text.strip():
            continue
        else:
            original = text.encode()
            try:
                rows[number] = _row.decode(text)
                continue
            except msgspec.ValidationError as error:
                # Within an object any value is taken but for numbers that are too large.
                reason = f"is JSON, but {error}" if "`$" in str(error) else "is no JSON object"
            except (msgspec.DecodeError, RecursionError) as error:
                reason = f"is not valid JSON: {error}"
        message = f"Line {number} of {lines.file} {reason}."
        bad.append(BadLine(number, Refused(_CODE, message), original))
    return rows, bad


def _column(values: list[Any]) -> pl.Series:
    """Text and integers as polars has them; all else stays as Python has it, each value by itself.

    polars would bring the values of a column to one type, and a row would read differently beside
    other neighbours.
    """
    kinds: set[type] = {type(value) for value in values if value is not None}
    if kinds <= {str}:
        return pl.Series(values, dtype=pl.String)
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return pl.Series(values, dtype=pl.Int64)
    return pl.Series(values, dtype=pl.Object)
