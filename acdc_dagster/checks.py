"""What a job calls healthy: limits on its answers, as a user declares them."""

from pydantic import Field

from acdc_dagster.declared import Declared


def _limit(default: float, description: str) -> float | None:
    return Field(default=default, ge=0, le=1, description=description)


class Checks(Declared):
    """Limits of the checks on `outputs`; a check that is null is left out.

    A check that fails warns and stops nothing.
    """

    failures: float | None = _limit(0.05, "Share of requests that failed in any way.")
    truncated: float | None = _limit(0.05, "Share of answers that were cut at max_tokens.")
    parse: float | None = _limit(0.05, "Share of answers that do not fit the schema.")
    degenerate: float | None = _limit(0.05, "Share of answers that are empty or repeat themselves.")
    length_drift: float | None = _limit(
        0.2, "How far the lengths of answers may be from those of the last good partition."
    )
    answer_drift: float | None = _limit(
        0.2, "How far the shares of the answers to an enum may be from those of that partition."
    )
    evaluation: float | None = _limit(
        0.05, "How far the score of the evaluation set may be below that of the last good run."
    )
