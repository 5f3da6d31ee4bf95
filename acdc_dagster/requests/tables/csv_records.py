"""Lines of a CSV file put together to records, and the lines that belong to none."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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
    rest: Lines | None = None
    for block in blocks:
        found, rest = _cut(block if rest is None else _joined(rest, block), last=False)
        yield found
    if rest is not None:
        yield _cut(rest, last=True)[0]


def _joined(rest: Lines, block: Lines) -> Lines:
    held = rest.text.len()
    not_utf8 = {place + held: line for place, line in block.not_utf8.items()}
    return Lines(rest.file, rest.first, pl.concat([rest.text, block.text]), not_utf8)


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
    lines: list[str | None] = block.text.to_list()
    texts: list[str] = []
    numbers: list[int] = []
    bad: list[BadLine] = []
    at = 0
    while at < len(lines):
        record, end = _record_at(lines, at)
        if record is not None:
            texts.append(record)
            numbers.append(block.first + at)
            at = end
        elif end == len(lines) and not last and _is_short(lines[at:]):
            break
        else:
            bad.append(_bad(block, at))
            at += 1
    return Records(pl.Series(texts, dtype=pl.String), pl.Series(numbers, dtype=pl.Int64), bad), at


def _record_at(lines: list[str | None], start: int) -> tuple[str | None, int]:
    """The record that begins with a line, if there is one, and the place after what was read."""
    first = lines[start]
    if first is None:
        return None, start
    record = _well_formed(first)
    if record is not None:
        return record, start + 1
    if not _OPENING.fullmatch(first):
        return None, start
    size = 0
    for place in range(start + 1, len(lines)):
        line = lines[place]
        size += len(line or "")
        if line is None or size > _LONGEST:
            return None, start
        if line.count('"') % 2:
            record = _well_formed("\n".join(str(part) for part in lines[start : place + 1]))
            return (None, start) if record is None else (record, place + 1)
    return None, len(lines)


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


def _is_short(lines: list[str | None]) -> bool:
    return sum(len(line or "") for line in lines) <= _LONGEST


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
