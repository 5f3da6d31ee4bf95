"""How far a partition's answers are from those of another, beyond what chance does."""

import math

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.job import Job
from acdc_dagster.tables import Tables

# 95 % quantile of the Kolmogorov distribution: two samples of one distribution are hardly ever
# further apart than this over the root of the harmonic sample size.
_KOLMOGOROV = 1.358
# The same for total variation, beyond its mean: McDiarmid's bound, sqrt(ln(1 / 0.05) / 2).
_MCDIARMID = 1.224


def length_drift(tables: Tables, before: str, partition: str) -> float:
    """Distance between the lengths of two partitions' answers, in tokens, 0 to 1.

    The largest difference of their distribution functions (Kolmogorov-Smirnov), less what two
    samples of this size of one distribution may differ by.
    """
    old, new = (_lengths(tables, key) for key in (before, partition))
    if not len(old) or not len(new):
        return 0.0
    at = np.unique(np.concatenate([old, new]))
    shares = [np.searchsorted(np.sort(one), at, side="right") / len(one) for one in (old, new)]
    apart = float(np.abs(shares[0] - shares[1]).max())
    return max(apart - _KOLMOGOROV * math.sqrt(1 / len(old) + 1 / len(new)), 0.0)


def answer_drift(job: Job, tables: Tables, before: str, partition: str) -> float:
    """Distance between two partitions' answers to the job's enums, 0 to 1; the largest of them.

    Half the sum of the differences of their shares (total variation), less what two samples of
    this size of one distribution may differ by.
    """
    enums = [column.name for column in job.answer_columns if column.few_values]
    return max((_variation(tables, name, before, partition) for name in enums), default=0.0)


def _lengths(tables: Tables, partition: str) -> NDArray[np.int64]:
    rows = tables.scan("outputs", partition).filter(pl.col("status") == "ok")
    lengths = tables.collect(rows.select(pl.col("completion_tokens").drop_nulls()))
    return lengths["completion_tokens"].to_numpy().astype(np.int64)


def _variation(tables: Tables, column: str, before: str, partition: str) -> float:
    counted = tables.collect(
        tables.scan("outputs")
        .filter(pl.col("partition_key").is_in([before, partition]), pl.col("status") == "ok")
        .group_by(column)
        .agg(
            (pl.col("partition_key") == before).sum().alias("old"),
            (pl.col("partition_key") == partition).sum().alias("new"),
        )
    )
    old, new = (counted[name].to_numpy().astype(np.float64) for name in ("old", "new"))
    if not old.sum() or not new.sum():
        return 0.0
    apart = float(np.abs(old / old.sum() - new / new.sum()).sum()) / 2
    spread = 1 / old.sum() + 1 / new.sum()
    share = (old + new) / (old + new).sum()
    # The mean of |difference| of two binomial shares is sqrt(2 / pi) of its standard deviation.
    mean = float(np.sqrt(2 / math.pi * share * (1 - share) * spread).sum()) / 2
    return max(apart - mean - _MCDIARMID * math.sqrt(spread), 0.0)
