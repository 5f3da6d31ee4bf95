"""The cron lines that a schedule may have.

The fields are those of cron: minute, hour, day of the month, month, day of the week.
"""

import re
from typing import NamedTuple

_ALIASES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_MONTHS = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# `*`, a value or a range of them; every so many of these; or the nth such weekday of a month.
_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?(?:#(\d+))?", re.ASCII)
_MOST_OF_A_WEEKDAY = 5


class _Field(NamedTuple):
    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)


def check_cron(line: str) -> None:
    """Check that a schedule can run by `line`.

    Raises:
        ValueError: It is no cron line of five fields, or there is never such a day.
    """
    if line in _ALIASES:
        return
    parts = line.split()
    if len(parts) != len(_FIELDS):
        raise ValueError(
            "a schedule is a cron line of five fields, like 0 2 * * *, or one of: "
            f"{', '.join(_ALIASES)}"
        )
    values = [_values(field, text) for field, text in zip(_FIELDS, parts, strict=True)]
    days, months = values[2:4]
    # With a weekday too, either is enough.
    if parts[4] == "*" and min(days) > max(_DAYS_OF_MONTH[month - 1] for month in months):
        raise ValueError(f"{line!r} never comes: no such month has a day {min(days)}")


def _values(field: _Field, text: str) -> set[int]:
    """The values that one field of the line allows."""
    values: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise _wrong(field, part)
        low, high, step, nth = match.groups()
        first = field.lowest if low is None else _value(field, low, part)
        last = _value(field, high, part) if high else first
        if low is None or (step and not high):
            last = field.highest
        if step and int(step) < 1:
            raise _wrong(field, part)
        if nth and (field.name != "weekday" or not 1 <= int(nth) <= _MOST_OF_A_WEEKDAY):
            raise _wrong(field, part)
        span = field.highest + 1 - field.lowest
        end = last if first <= last else last + span  # 22-2 goes over midnight
        values.update(
            field.lowest + (value - field.lowest) % span
            for value in range(first, end + 1, int(step or 1))
        )
    return values


def _value(field: _Field, text: str, part: str) -> int:
    if text.lower() in field.names:
        return field.names.index(text.lower()) + field.lowest
    if not text.isdigit() or not field.lowest <= int(text) <= field.highest:
        raise _wrong(field, part)
    return int(text)


def _wrong(field: _Field, part: str) -> ValueError:
    named = f", {field.names[0]} to {field.names[-1]}" if field.names else ""
    return ValueError(
        f"{part!r} is no {field.name} of a cron line; allowed: {field.lowest} to {field.highest}"
        f"{named}, *, a range like {field.lowest}-{field.highest}, and steps like */2"
    )
