"""How a job's rows are cut into partitions."""

from collections import Counter
from datetime import date, datetime
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from acdc_dagster.declared import Declared

Cadence = Literal["none", "hourly", "daily", "weekly", "monthly", "static"]

_LAST_DAY_OF_ALL_MONTHS = 28


class Partitions(Declared):
    """How the job's rows are cut into partitions, each materialised by itself."""

    cadence: Cadence = "none"
    start: date | datetime | None = Field(default=None, description="First partition, for a time.")
    end: date | datetime | None = Field(default=None, description="Where to stop (exclusive).")
    keys: list[str] | None = Field(default=None, description="The keys, for cadence: static.")

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
