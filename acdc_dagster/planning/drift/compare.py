"""Comparing answers with those that the plan was made for, each within its stratum."""

from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np
import polars as pl
from numpy.typing import NDArray

# A change that a plan survives: predictions are no better.
EFFECT = 0.15
# Chance of at least one false alarm over all looks at a job.
ALARM = 0.05
# Answers of one stratum, or of the profile in it, that say nothing of it by themselves.
_FEWEST = 10


@dataclass(frozen=True)
class Answers:
    """Tokens of answers, those that ended at their cap included.

    Attributes:
        stratum: int64[N], which part of the prefix order each is of.
        tokens: int64[N].
    """

    stratum: NDArray[np.int64]
    tokens: NDArray[np.int64]


@dataclass(frozen=True)
class Comparison:
    """What one look found.

    Attributes:
        seen: Answers compared.
        expected: Answers of the profile in the same strata.
        ratio: Mean of those seen over what the profile says of the same strata; 1 if nothing could
            be compared.
        p_value: Chance of such ranks if nothing had changed.
        drifted: The ratio is off by more than the effect, and that is no chance.
    """

    seen: int
    expected: int
    ratio: float
    p_value: float
    drifted: bool

    def __str__(self) -> str:
        return (
            f"answers of {self.seen:,} requests are {self.ratio:.2f} times as long as the profile "
            f"says of their part of the job ({self.expected:,} answers, p = {self.p_value:.2g})"
        )


def compare(
    profile: Answers,
    seen: Answers,
    looks: int,
    effect: float = EFFECT,
    alarm: float = ALARM,
) -> Comparison:
    """Whether answers are longer or shorter than those of the profile in the same strata.

    Ranks are compared within each stratum and summed (van Elteren 1960, the stratified form of
    Wilcoxon's test), so what one part of the job has and another has not is no difference, a few
    endless answers do not decide, and those that ended at the same cap are equal. The significance
    is `alarm` over the number of looks (Bonferroni), whatever the looks have in common. Of many
    answers everything is significant, so the means must differ by `effect` too.

    Args:
        profile: Drawn at random within each stratum.
        seen: All answers of some strata.
        looks: How often the job is looked at.
        effect: Relative change of the mean from which on it counts, in either direction.
        alarm: Chance of a false alarm over all looks.
    """
    joined = pl.DataFrame(
        {
            "stratum": np.append(profile.stratum, seen.stratum),
            "tokens": np.append(profile.tokens, seen.tokens),
            "seen": np.append(
                np.zeros(len(profile.tokens), dtype=bool), np.ones(len(seen.tokens), dtype=bool)
            ),
        }
    )
    by_stratum = (
        joined.with_columns(rank=pl.col("tokens").rank().over("stratum"))
        .group_by("stratum")
        .agg(
            m=pl.col("seen").sum().cast(pl.Float64),
            n=(~pl.col("seen")).sum().cast(pl.Float64),
            ranks=pl.col("rank").filter(pl.col("seen")).sum(),
            spread=pl.col("rank").var(),  # over m + n - 1, as drawing without repeats has it
            now=pl.col("tokens").filter(pl.col("seen")).mean(),
            before=pl.col("tokens").filter(~pl.col("seen")).mean(),
        )
        .filter((pl.col("m") > 0) & (pl.col("n") > 0))
    )
    count, expected = int(by_stratum["m"].sum()), int(by_stratum["n"].sum())
    if min(count, expected) < _FEWEST:
        return Comparison(count, expected, 1.0, 1.0, drifted=False)
    m, n = by_stratum["m"].to_numpy(), by_stratum["n"].to_numpy()
    weight = 1 / (m + n + 1)
    off = by_stratum["ranks"].to_numpy() - m * (m + n + 1) / 2
    variance = m * n / (m + n) * by_stratum["spread"].to_numpy()
    scale = sqrt(float((weight**2 * variance).sum()))
    z = float((weight * off).sum()) / scale if scale else 0.0
    p_value = erfc(abs(z) / sqrt(2))
    before = float((m * by_stratum["before"].to_numpy()).sum())
    ratio = float((m * by_stratum["now"].to_numpy()).sum()) / before if before else 1.0
    moved = ratio > 1 + effect or ratio < 1 / (1 + effect)
    return Comparison(count, expected, ratio, p_value, moved and p_value < alarm / looks)
