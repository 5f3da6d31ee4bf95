"""What `acdc check` says: the findings about a source, for a person or as JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from acdc_dagster.prefix.sequences import Positions

_SHOWN_REJECTED = 20
_BINS, _BAR = 8, 40
# A gain in hit rate below this is not worth a word.
_NOTHING = 0.005


@dataclass(frozen=True)
class Lengths:
    """Prompt lengths in tokens.

    Attributes:
        bins: Upper end of a range of lengths (exclusive), and how many prompts are in it.
    """

    total: int
    p50: int
    p95: int
    longest: int
    bins: list[tuple[int, int]]

    @staticmethod
    def of(lengths: Positions) -> "Lengths":
        """Of these prompts."""
        if not len(lengths):
            return Lengths(0, 0, 0, 0, [])
        quantiles = np.quantile(lengths, [0.5, 0.95], method="higher")
        low, high = int(lengths.min()), int(lengths.max()) + 1
        counts, edges = np.histogram(lengths, bins=min(_BINS, high - low), range=(low, high))
        bins = [(int(np.ceil(edge)), int(n)) for edge, n in zip(edges[1:], counts, strict=True)]
        return Lengths(int(lengths.sum()), int(quantiles[0]), int(quantiles[1]), high - 1, bins)


@dataclass(frozen=True)
class HitRates:
    """Expected prefix-cache hit rates, 0 to 1, with blocks of `block_size` tokens.

    Attributes:
        kv_tokens: Tokens that the simulated cache holds.
        file_order: When run in the source's order,
        random_order: in a random order (Che's approximation),
        prefix_order: and in prefix order, with the same cache.
        bound: Highest possible hit rate, with a cache that never forgets.
    """

    block_size: int
    kv_tokens: int
    file_order: float
    random_order: float
    prefix_order: float
    bound: float


@dataclass(frozen=True)
class Group:
    """A prefix that many requests begin with.

    Attributes:
        tokens: Its length.
        saved: Tokens that need not be computed because of it.
    """

    requests: int
    tokens: int
    saved: int


@dataclass(frozen=True)
class Report:
    """The findings; all figures are over the valid rows, repeated requests included.

    Attributes:
        rows: Rows of the source; blank lines do not count.
        duplicates: Valid rows whose request is that of an earlier row.
        sharing: Share of prompt tokens that repeat a prefix (0 to 1).
        advice: What would make the job cheaper, or why nothing would.
        can_run: Whether a job would run the rows: not too many are rejected.
    """

    name: str
    rows: int
    valid: int
    rejected: list[dict[str, Any]]
    duplicates: int
    lengths: Lengths
    sharing: float
    hit_rates: HitRates
    groups: list[Group]
    advice: list[str]
    warnings: list[str]
    can_run: bool

    def as_json(self) -> str:
        """The report as one JSON object."""
        return json.dumps(
            {
                "rows": self.rows,
                "valid": self.valid,
                "rejected": self.rejected,
                "duplicates": self.duplicates,
                "prompt_tokens": asdict(self.lengths),
                "sharing": self.sharing,
                "hit_rate": asdict(self.hit_rates),
                "groups": [asdict(group) for group in self.groups],
                "advice": self.advice,
                "warnings": self.warnings,
            },
            ensure_ascii=False,
        )

    def as_text(self) -> str:
        """The report for a person."""
        rates, lengths = self.hit_rates, self.lengths
        lines = [
            f"{self.name}: {self.rows} rows, {self.valid} valid, {len(self.rejected)} rejected",
            *(
                f"  line {r['line']}: {r['code']}: {r['message']}"
                for r in self.rejected[:_SHOWN_REJECTED]
            ),
        ]
        if len(self.rejected) > _SHOWN_REJECTED:
            more = len(self.rejected) - _SHOWN_REJECTED
            lines.append(f"  … and {more} more; --json lists all")
        lines += [
            f"duplicates        {self.duplicates} (a repeated request is computed once)",
            f"prompt tokens     {lengths.total}: half below {lengths.p50 + 1}, 95 % below "
            f"{lengths.p95 + 1}, longest {lengths.longest}",
            *_histogram(lengths.bins),
            f"prefix sharing    {_percent(self.sharing)} of prompt tokens repeat a prefix",
            f"cache hit rate    {_percent(rates.file_order)} in file order, "
            f"{_percent(rates.random_order)} in random order, {_percent(rates.prefix_order)} in "
            f"prefix order, {_percent(rates.bound)} at best",
            f"{'':<18}(blocks of {rates.block_size} tokens, {rates.kv_tokens} tokens of cache)",
            *(
                f"shared prefix     {group.tokens} tokens by {group.requests} requests save "
                f"{_percent(group.saved / max(lengths.total, 1))}"
                for group in self.groups
            ),
            *(f"advice: {advice}" for advice in self.advice),
            *(f"warning: {warning}" for warning in self.warnings),
            "A job can run this."
            if self.can_run
            else "No job would run this: too many rows are rejected (see max_rejected).",
        ]
        return "\n".join(lines)


def about_the_order(valid: int, rates: HitRates, sharing: float) -> list[str]:
    """What is to be said where the prefix order does not help; for `sharing` see `Report`."""
    if not valid or rates.prefix_order - min(rates.file_order, rates.random_order) >= _NOTHING:
        return []
    if rates.bound < _NOTHING <= sharing:
        return [
            f"What the requests share at their beginnings is shorter than a KV block of "
            f"{rates.block_size} tokens, and only whole blocks are reused, so no order helps. Put "
            "more of what they have in common first."
        ]
    if rates.bound < _NOTHING:
        return [
            "The requests share next to nothing at their beginnings, so no order helps. Put what "
            "they have in common first."
        ]
    return [
        "What the requests share is in the cache in any order, so the prefix order gains nothing."
    ]


def _histogram(bins: list[tuple[int, int]]) -> list[str]:
    most = max((count for _, count in bins), default=0)
    return [
        f"{'< ' + str(end):>17} {'█' * -(-count * _BAR // most)} {count}" for end, count in bins
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
