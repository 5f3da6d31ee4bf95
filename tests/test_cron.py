"""Cron lines: those that a schedule can have, and what is told of the others."""

import pytest

from acdc_dagster.cron import check_cron


@pytest.mark.parametrize(
    "line",
    [
        *("@daily", "0 2 * * *", "*/15 * * * *", "5/15 0-12/2 1,15 jan-MAR mon-fri"),
        *("0 22-2 * * fri-mon", "0 0 29 2 *", "0 0 31 4 mon", "0 0 * * 5#2", "0 0 * * 7"),
    ],
)
def test_a_cron_line_is_taken(line: str) -> None:
    """Values, names, ranges also over the end, steps and the nth weekday; aliases."""
    check_cron(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("@nosuch", "@hourly, @daily"),
        ("* * * * * *", "five fields"),
        ("99 * * * *", "'99' is no minute of a cron line; allowed: 0 to 59"),
        ("*/0 * * * *", "'*/0' is no minute"),
        ("0 0 L * *", "'L' is no day"),
        ("0 0 * foo *", "'foo' is no month of a cron line; allowed: 1 to 12, jan to dec"),
        ("0 0 * * bar", "'bar' is no weekday"),
        ("0 0 * * 5#9", "'5#9' is no weekday"),
        ("0 0 1#2 * *", "'1#2' is no day"),
        ("0 0 31 2 *", "never comes: no such month has a day 31"),
        ("0 0 31 4,6 *", "never comes"),
        ("0, * * * *", "'' is no minute"),
    ],
)
def test_another_line_is_refused(line: str, said: str) -> None:
    """With the part that is wrong and what may stand there."""
    with pytest.raises(ValueError, match=r"\w") as caught:
        check_cron(line)
    assert said in str(caught.value)
