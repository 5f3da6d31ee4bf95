"""How long the answers will be: as in the job's earlier partitions, else as long as allowed."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.tables import Tables

_FEWEST = 30  # answers that say more than the cap does
_MOST = 100_000  # answers looked at, of the newest partitions


@dataclass(frozen=True)
class ExpectedAnswers:
    """Tokens of the answers.

    Attributes:
        tokens: int64[N], one a request, in the order of the caps.
        source: Where they come from, in words.
        cut: Share of the observed answers that ended at their cap, so that they say only a lower
            bound; None if nothing was observed.
    """

    tokens: NDArray[np.int64]
    source: str
    cut: float | None


def expected_answers(
    tables: Tables, partition: str, prompt_version: str, caps: NDArray[np.int64]
) -> ExpectedAnswers:
    """Answers drawn from those of other partitions to the same prompt version.

    The draw is uniform and the same each time; no answer is longer than its request's cap.

    Args:
        tables: Of the job.
        partition: The one to be planned, whose own answers are not looked at.
        prompt_version: Of the job as declared now.
        caps: int64[N], most tokens of each answer.

    Raises:
        TableError: The storage refused.
    """
    answered = pl.col("completion_tokens").is_not_null() & (pl.col("completion_tokens") > 0)
    seen = tables.collect(
        tables.scan("outputs")
        .filter(
            answered,
            pl.col("prompt_version") == prompt_version,
            pl.col("partition_key") != partition,
        )
        .select("partition_key", "completion_tokens", "finish_reason")
        .sort("partition_key", descending=True)
        .head(_MOST)
    )
    if len(seen) < _FEWEST:
        return ExpectedAnswers(caps, "max_tokens, since nothing was measured yet", None)
    observed = seen["completion_tokens"].to_numpy().astype(np.int64)
    drawn = np.random.default_rng(0).choice(observed, len(caps))
    partitions = seen["partition_key"].n_unique()
    return ExpectedAnswers(
        tokens=np.minimum(drawn, caps),
        source=f"{len(seen):,} answers of {partitions} earlier partition(s)",
        cut=int((seen["finish_reason"] == "length").sum()) / len(seen),
    )
