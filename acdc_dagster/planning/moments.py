"""Deadlines as people say them: a time of day, or a date with it."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from acdc_dagster.errors import DeclarationError


def seconds_until(text: str, timezone: str, now: datetime) -> float:
    """Seconds from `now` until a time of day (`06:00`: the next one) or `2026-12-01T06:00`.

    Args:
        text: The moment.
        timezone: In which it is said, unless it says its own.
        now: An aware datetime.

    Raises:
        DeclarationError: It is no such moment, or it is past.
    """
    zone = ZoneInfo(timezone)
    here = now.astimezone(zone)
    try:
        if "T" not in text and " " not in text:
            clock = datetime.strptime(text, "%H:%M").time()
            then = datetime.combine(here.date(), clock, zone)
            if then <= here:
                then = datetime.combine(here.date() + timedelta(days=1), clock, zone)
        else:
            then = datetime.fromisoformat(text)
            then = then if then.tzinfo is not None else then.replace(tzinfo=zone)
    except ValueError:
        raise DeclarationError(
            f"{text!r} is no moment to be done by.",
            "Write a time of day like 06:00, or a date with it like 2026-12-01T06:00.",
        ) from None
    seconds = then.timestamp() - now.timestamp()
    if seconds <= 0:
        raise DeclarationError(
            f"{text} ({timezone}) is past: it is {here:%Y-%m-%d %H:%M} there.",
            "Give a moment to come.",
        )
    return seconds
