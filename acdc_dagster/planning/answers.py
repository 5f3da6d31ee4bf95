"""How long the answers will be: as in the job's other partitions, else as long as allowed."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.tables import Tables

_FEWEST = 30  # answers that say more than the cap does
_MOST = 100_000  # answers looked at,
_PARTITIONS = 30  # of so many of the newest partitions
_ENDLESS = 2**62  # of an answer that was cut and longer than all that were not

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ExpectedAnswers:
    """Tokens of the answers.

    Attributes:
        tokens: int64[N], one a request, in the order of the caps.
        source: Where they come from, in words.
        cut: Share of the observed answers that ended at their cap, so that they say only a lower
            bound; None if nothing was observed.
    """

    tokens: Ints
    source: str
    cut: float | None


def expected_answers(
    tables: Tables, partition: str, prompt_version: str, caps: Ints
) -> ExpectedAnswers:
    """Answers drawn from those of other partitions: to the same prompt version, else to others.

    Counted are answers to requests, not outputs: a row that was split has the tokens of all its
    chunks. The draw is uniform and the same each time; no answer is longer than its request's cap.

    Args:
        tables: Of the job.
        partition: The one to be planned, whose own answers are not looked at.
        prompt_version: Of the job as declared now.
        caps: int64[N], most tokens of each answer.

    Raises:
        TableError: The storage refused.
    """
    seen = _observed(tables, partition)
    same = seen.filter(prompt_version=prompt_version)
    other = "" if len(same) >= _FEWEST else " to another prompt version"
    if other:
        same = seen.filter(pl.col("prompt_version") != prompt_version)
    if len(same) < _FEWEST:
        return ExpectedAnswers(caps, "max_tokens, since nothing was measured yet", None)
    ended, cut = (
        same.filter(was_cut=flag)["completion_tokens"].to_numpy().astype(np.int64)
        for flag in (False, True)
    )
    partitions = same["partition_key"].n_unique()
    return ExpectedAnswers(
        tokens=np.minimum(drawn(ended, cut, len(caps)), caps),
        source=f"{len(same):,} answers of {partitions} other partition(s){other}",
        cut=len(cut) / len(same),
    )


def drawn(ended: Ints, cut: Ints, count: int) -> Ints:
    """Lengths drawn from a sample in which some answers were cut.

    A cut answer is a censored observation: it would have been at least as long. The distribution is
    the product-limit estimate of Kaplan and Meier (1958); an answer beyond the longest that ended
    has no known length and comes as 2^62.

    Args:
        ended: Tokens of the answers that ended by themselves.
        cut: Tokens at which others were cut.
        count: How many to draw.
    """
    lengths, deaths = np.unique(ended, return_counts=True)
    everything = np.sort(np.concatenate([ended, cut]))
    at_risk = len(everything) - np.searchsorted(everything, lengths)
    beyond = np.cumprod(1 - deaths / at_risk)  # share of the answers that are longer
    values = np.append(lengths, _ENDLESS)
    at = np.searchsorted(1 - beyond, np.random.default_rng(0).random(count), side="right")
    return values[at]


def _observed(tables: Tables, partition: str) -> pl.DataFrame:
    """One row a request: partition_key, prompt_version, completion_tokens, was_cut.

    Of a large partition a part is read: request hashes are as good as random, so those below a
    bound are a uniform sample, and not the beginning of the prefix order.
    """
    keys = [key for key in reversed(tables.partitions("inference")) if key != partition]
    found = [_NOTHING]
    for key in keys[:_PARTITIONS]:
        left = _MOST - sum(map(len, found))
        if left <= 0:
            break
        share = left / max(tables.count("inference", key), 1)
        sampled = pl.lit(True) if share >= 1 else pl.col("request_hash") < _bound(share)
        answers = (
            tables.scan("inference", key)
            .filter(sampled, pl.col("completion_tokens") > 0)
            .sort("attempt")
            .unique("request_hash", keep="last", maintain_order=True)
        )
        asked = tables.scan("request_map", key).filter(sampled).unique("request_hash")
        rows = answers.join(asked, on="request_hash").select(
            "partition_key",
            "prompt_version",
            "completion_tokens",
            (pl.col("finish_reason") == "length").fill_null(value=False).alias("was_cut"),
        )
        found.append(tables.collect(rows))
    return pl.concat(found)


_NOTHING = pl.DataFrame(
    schema={
        "partition_key": pl.String,
        "prompt_version": pl.String,
        "completion_tokens": pl.Int32,
        "was_cut": pl.Boolean,
    }
)


def _bound(share: float) -> str:
    """The hash below which about so large a share of all hashes lie."""
    return f"{int(share * 16**8):08x}"
