"""How a job's rows are cut into partitions."""

from collections import Counter
from datetime import date, datetime
from typing import Annotated, Literal, Self
from urllib.parse import quote

from pydantic import AfterValidator, Field, field_validator, model_validator

from acdc_dagster.declared import Declared

Cadence = Literal["none", "hourly", "daily", "weekly", "monthly", "static"]

_LAST_DAY_OF_ALL_MONTHS = 28
# What Dagster allows in no key: its mark of a range of keys, and control characters.
_NO_KEY_HAS = ("...", "\a", "\b", "\f", "\n", "\r", "\t", "\v", "\0")
_LONGEST_NAME = 255  # of a folder, in bytes; each key is one, under the tables
_KEY_FORMATS: dict[Cadence, str] = {
    "hourly": "%Y-%m-%d-%H:%M",
    "daily": "%Y-%m-%d",
    "weekly": "%Y-%m-%d",
    "monthly": "%Y-%m-%d",
}


def _can_be_a_key(key: str) -> str:
    if not key.strip():
        raise ValueError(f"{key!r} is blank and can be no partition key")
    wrong = [part for part in _NO_KEY_HAS if part in key]
    if wrong:
        raise ValueError(f"{key!r} has {wrong[0]!r}, which no partition key may have")
    if len(f"partition_key={quote(key, safe='')}") > _LONGEST_NAME:
        raise ValueError(f"the key {key[:20]!r}… is too long for the name of a folder")
    return key


class Partitions(Declared):
    """How the job's rows are cut into partitions, each materialised by itself."""

    cadence: Cadence = "none"
    start: date | datetime | None = Field(default=None, description="First partition, for a time.")
    end: date | datetime | None = Field(default=None, description="Where to stop (exclusive).")
    keys: list[Annotated[str, AfterValidator(_can_be_a_key)]] | None = Field(
        default=None, description="The keys, for cadence: static."
    )

    @field_validator("start", "end", mode="before")
    @classmethod
    def _is_written_as_a_date(cls, value: object) -> object:
        if isinstance(value, int | float):
            raise ValueError(f"write {value} as a date, like 2026-11-01")
        return value

    @model_validator(mode="after")
    def _fits_the_cadence(self) -> Self:
        timed = self.cadence not in ("none", "static")
        if timed and self.start is None:
            raise ValueError(f"cadence {self.cadence} needs start, the first partition's date")
        if not timed and (self.start is not None or self.end is not None):
            raise ValueError(f"start and end belong to a time cadence, not to {self.cadence}")
        if self.start is not None and self.end is not None and _day(self.end) <= _day(self.start):
            raise ValueError("end must be after start")
        if (self.cadence == "static") != bool(self.keys):
            raise ValueError("keys and cadence: static belong together")
        twice = [key for key, times in Counter(self.keys or ()).items() if times > 1]
        if twice:
            raise ValueError(f"keys holds {twice[0]!r} twice")
        return self

    @model_validator(mode="after")
    def _start_and_end_are_boundaries(self) -> Self:
        if self.cadence == "monthly" and self.begins_on > _LAST_DAY_OF_ALL_MONTHS:
            raise ValueError(
                "monthly partitions begin on the day of start, and not all months have a day "
                f"{self.begins_on}; use one up to {_LAST_DAY_OF_ALL_MONTHS}"
            )
        for name, moment in (("start", self.start), ("end", self.end)):
            if moment is not None and not self._begins(moment):
                raise ValueError(f"{name}: no {self.cadence} partition begins at {moment}")
        return self

    def has(self, key: str) -> bool:
        """Whether `key` is one of the keys, among them those of times to come."""
        if self.keys is not None or self.start is None:
            return key in (self.keys or ())
        try:
            moment = datetime.strptime(key, _KEY_FORMATS[self.cadence])
        except ValueError:
            return False
        over = self.end is not None and _day(moment) >= _day(self.end)
        return _day(moment) >= _day(self.start) and not over and self._begins(moment)

    @property
    def described(self) -> str:
        """The keys in words."""
        if self.keys is not None or self.start is None:
            return f"one of: {', '.join(self.keys or ())}"
        first, end = (
            None if moment is None else moment.strftime(_KEY_FORMATS[self.cadence])
            for moment in (self.start, self.end)
        )
        return f"a {self.cadence} one from {first}" + (f", before {end}" if end else "")

    def _begins(self, moment: date | datetime) -> bool:
        """Whether a partition begins then."""
        hour, *finer = moment.timetuple()[3:6]
        if any(finer) or (hour and self.cadence != "hourly"):
            return False
        match self.cadence:
            case "weekly":
                return moment.isoweekday() % 7 == self.begins_on
            case "monthly":
                return moment.day == self.begins_on
            case _:
                return True

    @property
    def begins_on(self) -> int:
        """The day that a partition begins on: of the week (Sunday is 0), or of the month.

        It is that of `start`; 0 for other cadences.
        """
        match self.cadence, self.start:
            case "weekly", date() as start:
                return start.isoweekday() % 7
            case "monthly", date() as start:
                return start.day
            case _:
                return 0


def _day(moment: date | datetime) -> tuple[int, ...]:
    return moment.timetuple()[:6]
