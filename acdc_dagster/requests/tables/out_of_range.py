"""Dates, times and durations that a file can hold and Python cannot.

Parquet and Delta count days or parts of a second in 32 or 64 bits, which reaches far beyond the
years 1 to 9999 of Python's `datetime`; even to write such a value as text may fail.
"""

import datetime as dt
from typing import Any

import polars as pl

_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400  # seconds
# Python's limit of a timedelta, less the day that the parts of its last one may fill.
_MOST_DAYS = 999_999_998


def out_of_range(values: pl.Expr, dtype: pl.DataType) -> pl.Expr | None:
    """Whether each of some values is, or holds, what Python cannot; never null.

    Moments with a time zone keep a day's distance from both ends, since the zone moves them.

    Args:
        values: What is asked about.
        dtype: Their type.

    Returns:
        None if no value of this type is out of range.
    """
    match dtype:
        case pl.Date():
            return _outside(values, _FIRST_DAY, _LAST_DAY)
        case pl.Datetime(time_unit=unit, time_zone=zone):
            margin = 0 if zone is None else 1
            first, end = _FIRST_DAY + margin, _LAST_DAY + 1 - margin
            second = _PER_SECOND[unit] * _DAY
            return _outside(values, first * second, end * second - 1)
        case pl.Duration(time_unit=unit):
            most = _MOST_DAYS * _DAY * _PER_SECOND[unit]
            return _outside(values, -most, most)
        case pl.Time():
            return _outside(values, 0, _DAY * _PER_SECOND["ns"] - 1)
        case pl.List(inner=inner):
            return _any_of(values, _type(inner))
        case pl.Array(inner=inner):
            return _any_of(values.arr.to_list(), _type(inner))
        case pl.Struct(fields=fields):
            asked = [
                found
                for field in fields
                if (found := out_of_range(values.struct.field(field.name), _type(field.dtype)))
                is not None
            ]
            return pl.any_horizontal(asked) if asked else None
        case _:
            return None


def _type(dtype: Any) -> pl.DataType:
    """A type within another, which polars declares as a class too."""
    return dtype


def _outside(values: pl.Expr, first: int, last: int) -> pl.Expr:
    low, high = (max(min(bound, 2**63 - 1), -(2**63)) for bound in (first, last))
    number = values.to_physical().cast(pl.Int64)
    inside = number.is_between(pl.lit(low, pl.Int64), pl.lit(high, pl.Int64))
    return (~inside).fill_null(value=False)


def _any_of(lists: pl.Expr, inner: pl.DataType) -> pl.Expr | None:
    within = out_of_range(pl.element(), inner)
    return None if within is None else lists.list.eval(within).list.any().fill_null(value=False)
