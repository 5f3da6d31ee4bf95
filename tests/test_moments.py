"""Deadlines as people say them."""

from datetime import UTC, datetime

import pytest

from acdc_dagster.errors import DeclarationError
from acdc_dagster.planning.moments import seconds_until

NOW = datetime(2026, 11, 30, 22, 0, tzinfo=UTC)  # 23:00 in Berlin


@pytest.mark.parametrize(
    ("text", "timezone", "hours"),
    [
        ("06:00", "UTC", 8),
        ("06:00", "Europe/Berlin", 7),
        ("22:30", "UTC", 0.5),
        ("22:00", "UTC", 24),
        ("2026-12-02T06:00", "UTC", 32),
        ("2026-12-02 06:00", "Europe/Berlin", 31),
        ("2026-12-02T06:00+03:00", "UTC", 29),
    ],
)
def test_a_moment_is_so_far_away(text: str, timezone: str, hours: float) -> None:
    """A time of day is the next one, in the job's time zone."""
    assert seconds_until(text, timezone, NOW) == hours * 3600


@pytest.mark.parametrize("text", ["6 o'clock", "25:00", "2026-11-30T21:00", "", "06:00:99"])
def test_what_is_no_moment_to_come_is_told(text: str) -> None:
    """With an example."""
    with pytest.raises(DeclarationError, match=r"no moment|is past"):
        seconds_until(text, "UTC", NOW)
