"""Lines of a CSV file put together to records, and the lines that belong to none."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from acdc_dagster.requests.lines import Lines
from acdc_dagster.requests.refused import Refused
from acdc_dagster.requests.tables.slices import BadLine

CODE = "invalid_csv_line"
# RFC 4180: a field is in quotes, with quotes in it doubled, or has none. Possessive, so that no
# text takes more than linear time; the other one is for Rust, where none does.
_QUOTED = r'"(?:[^"]|"")*+"'
_RECORD = re.compile(rf'(?:{_QUOTED}|[^",]*+)(?:,(?:{_QUOTED}|[^",]*+))*+')
_RECORD_IN_RUST = r'(?s)^(?:"(?:[^"]|"")*"|[^",]*)(?:,(?:"(?:[^"]|"")*"|[^",]*))*$'
# A quote within a field that does not begin with one is a character like any other: 5" pan.
_LENIENT = rf'(?:{_QUOTED}|(?:[^",\n][^,\n]*+)?)'
_FIELD = re.compile(rf"(?:\A|(?<=,)){_LENIENT}(?=,|\Z)")
_MENDABLE = re.compile(rf"{_LENIENT}(?:,{_LENIENT})*+")
_OPENING = re.compile(rf'(?:{_LENIENT},)*+"(?:[^"]|"")*+')
# A line that begins within quotes: one that ends within quotes too, and one that ends a record.
_FIELD_IN_RUST = r'(?:"(?:[^"]|"")*"|(?:[^",][^,]*)?)'
_THROUGH_IN_RUST = rf'(?s)^(?:[^"]|"")*(?:",(?:{_FIELD_IN_RUST},)*"(?:[^"]|"")*)?$'
_CLOSING_IN_RUST = rf'(?s)^(?:[^"]|"")*"(?:,{_FIELD_IN_RUST})*$'
_LONGEST = 4 * 2**20  # characters of a record of several lines: a quote that nobody closes ends


@dataclass(frozen=True)
class Records:
    """Consecutive records of one file, blank lines left out.

    Attributes:
        text: Each as it stands, its quotes well-formed.
        lines: The number of each one's first line, Int64.
        bad: Lines between them that belong to no record.
    """

    text: pl.Series
    lines: pl.Series
    bad: list[BadLine] = field(default_factory=list[BadLine])


def records(blocks: Iterable[Lines]) -> Iterator[Records]:
    """The records of one file.

    A quoted field may hold line ends. A line with text after a closing quote, or with a quote that
    is never closed, is bad by itself; the line after it begins a record again.
    """
    waiting: list[Lines] = []  # what the last cut left, and the blocks after it
    for block in blocks:
        waiting.append(block)
        if len(waiting) > 1 and sum(map(_size, waiting[1:])) < _size(waiting[0]):
            continue  # so that no line is looked at more than a few times
        found, rest = _cut(_joined(waiting), last=False)
        waiting = [] if rest is None else [rest]
        yield found
    if waiting:
        yield _cut(_joined(waiting), last=True)[0]


def _size(block: Lines) -> int:
    return int(block.text.str.len_chars().sum())


def _joined(blocks: list[Lines]) -> Lines:
    not_utf8: dict[int, bytes] = {}
    held = 0
    for block in blocks:
        not_utf8 |= {place + held: line for place, line in block.not_utf8.items()}
        held += block.text.len()
    text = pl.concat([block.text for block in blocks])
    return Lines(blocks[0].file, blocks[0].first, text, not_utf8)


def _cut(block: Lines, *, last: bool) -> tuple[Records, Lines | None]:
    """The records of a block, and the lines at its end that the next block completes."""
    found, held = _by_parity(block, last=last) or _line_by_line(block, last=last)
    written = found.text.str.strip_chars() != ""
    kept = Records(found.text.filter(written), found.lines.filter(written), found.bad)
    if held == block.text.len():
        return kept, None
    return kept, Lines(block.file, block.first + held, block.text[held:])


def _by_parity(block: Lines, *, last: bool) -> tuple[Records, int] | None:
    """Records, and where the rest begins, if a line end is in quotes after an odd number of them.

    None if that gives a record that is not well-formed, and for lines that are not UTF-8.
    """
    if block.not_utf8:
        return None
    frame = pl.DataFrame({"text": block.text}).with_row_index("line", offset=block.first)
    odd = block.text.str.count_matches('"', literal=True) % 2
    held = frame.height
    odd_lines = int(odd.sum())
    if odd_lines:
        begins = (odd.cum_sum() - odd) % 2 == 0  # an even number of quotes before it
        frame = frame.with_columns(record=begins.cum_sum())
        if odd_lines % 2:
            held = int((frame["record"] < frame["record"][-1]).sum())
            if last or int(block.text[held:].str.len_chars().sum()) > _LONGEST:
                return None
            frame = frame[:held]
        frame = frame.group_by("record", maintain_order=True).agg(
            pl.col("line").first(), pl.col("text").str.join("\n")
        )
    quoted = frame["text"].filter(frame["text"].str.contains('"', literal=True))
    if not quoted.str.contains(_RECORD_IN_RUST).all():
        return None
    return Records(frame["text"], frame["line"].cast(pl.Int64)), held


def _line_by_line(block: Lines, *, last: bool) -> tuple[Records, int]:
    """Records, and where the rest begins, of lines some of which belong to none."""
    quoted = _Quoted.of(block.text)
    lines = quoted.lines
    texts: list[str] = []
    numbers: list[int] = []
    bad: list[BadLine] = []
    at = 0
    while at < len(lines):
        record, end = _record_at(quoted, at)
        if record is not None:
            texts.append(record)
            numbers.append(block.first + at)
            at = end
        elif end == len(lines) and not last:
            break
        else:
            bad.append(_bad(block, at))
            at += 1
    return Records(pl.Series(texts, dtype=pl.String), pl.Series(numbers, dtype=pl.Int64), bad), at


@dataclass(frozen=True)
class _Quoted:
    """What lines are if they begin within quotes, found out once for each of them.

    Attributes:
        lines: Their text; None where a line is not UTF-8.
        ends: Characters up to each line, and after the last.
        stops: Places of the lines that do not end within quotes.
        closing: Those of them that end a record.
    """

    lines: list[str | None]
    ends: list[int]
    stops: list[int]
    closing: set[int]

    @staticmethod
    def of(text: pl.Series) -> "_Quoted":
        odd = text.str.count_matches('"', literal=True) % 2 == 1
        through = (text.str.contains(_THROUGH_IN_RUST) & ~odd).fill_null(value=False)
        closing = (text.str.contains(_CLOSING_IN_RUST) & odd).fill_null(value=False)
        sizes = text.str.len_chars().fill_null(0).to_numpy().astype(np.int64)
        return _Quoted(
            text.to_list(),
            [0, *np.cumsum(sizes).tolist()],
            (~through).arg_true().to_list(),
            set(closing.arg_true().to_list()),
        )

    def stop(self, start: int) -> int | None:
        """The place of the first line from `start` on that does not end within quotes."""
        found = bisect_left(self.stops, start)
        return self.stops[found] if found < len(self.stops) else None

    def is_short(self, start: int, end: int) -> bool:
        """Whether those lines can belong to one record."""
        return self.ends[end] - self.ends[start] <= _LONGEST


def _record_at(quoted: _Quoted, start: int) -> tuple[str | None, int]:
    """The record that begins with a line, if there is one, and the place after what was read."""
    first = quoted.lines[start]
    if first is None:
        return None, start
    record = _well_formed(first)
    if record is not None:
        return record, start + 1
    if not _OPENING.fullmatch(first):
        return None, start
    stop = quoted.stop(start + 1)
    if stop is None:
        end = len(quoted.lines)
        return None, end if quoted.is_short(start + 1, end) else start
    if stop not in quoted.closing or not quoted.is_short(start + 1, stop + 1):
        return None, start
    record = _well_formed("\n".join(str(part) for part in quoted.lines[start : stop + 1]))
    return record, stop + 1


def _well_formed(text: str) -> str | None:
    """A record with all its quotes as RFC 4180 has them; None if that cannot be."""
    if _RECORD.fullmatch(text):
        return text
    if not _MENDABLE.fullmatch(text):
        return None
    fields = [field.group() for field in _FIELD.finditer(text)]
    return ",".join(
        '"' + field.replace('"', '""') + '"' if '"' in field and field[0] != '"' else field
        for field in fields
    )


def _bad(block: Lines, place: int) -> BadLine:
    number = block.first + place
    original = block.not_utf8.get(place)
    if original is None:
        original = str(block.text[place]).encode()
        reason = (
            "has a quote that is not closed, or text after one that is; put the field into quotes "
            "and double each quote in it."
        )
    else:
        reason = "is not valid UTF-8; save the file as UTF-8."
    return BadLine(number, Refused(CODE, f"Line {number} of {block.file} {reason}"), original)
