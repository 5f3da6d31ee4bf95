"""False alarms of the drift check on real jobs, and how soon it sees a real shift."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acdc_dagster.planning.drift.compare import Answers, Comparison, compare
from acdc_dagster.planning.sample import sample_positions, sample_size
from acdc_dagster.planning.strata import strata, stratum_of
from benchmarks.lengths import Job, jobs, windows

Ints = NDArray[np.int64]

_LOOKS = 19  # one each further 5 % of a job


def looks(lcp: Ints, sampled: Ints, expected: Ints, answers: Ints) -> list[Comparison]:
    """What each look finds in a job that is run in prefix order.

    Args:
        lcp: Of the job.
        sampled: Positions of the profile's sample, which are not asked again.
        expected: Answers of the sample.
        answers: int64[N], of the job.
    """
    rows, starts = len(lcp), strata(lcp)
    of = stratum_of(starts, np.arange(rows))
    profile = Answers(of[sampled], expected)
    rest = np.setdiff1d(np.arange(rows), sampled)
    ends = np.append(starts[1:], rows)
    found: list[Comparison] = []
    before = [0, 0]
    for look in range(1, _LOOKS + 1):
        whole = int(np.searchsorted(ends, look * rows // (_LOOKS + 1), side="right"))
        now = rest[(of[rest] >= before[0]) & (of[rest] < whole)]
        found.append(compare(profile, Answers(of[now], answers[now]), _LOOKS))
        before = [before[1], whole]
    return found


def _plain(job: Job, sampled: Ints) -> bool:
    """The comparison that this one replaces: each window with the whole sample, any part."""
    rows, expected = len(job.lcp), job.answers[sampled]
    profile = Answers(np.zeros(len(sampled), np.int64), expected)
    for look in range(1, _LOOKS + 1):
        now = job.answers[look * rows // (_LOOKS + 1) : (look + 1) * rows // (_LOOKS + 1)]
        if compare(profile, Answers(np.zeros(len(now), np.int64), now), _LOOKS).drifted:
            return True
    return False


def false_alarms(data: Path, runs: int) -> list[dict[str, Any]]:
    """Jobs of which nothing changed, each with other samples: in how many there was an alarm."""
    rows: list[dict[str, Any]] = []
    for job in jobs(data):
        alarms = plain = 0
        for seed in range(runs):
            size = sample_size(len(job.lcp))
            at = sample_positions(len(job.lcp), seed, size, strata(job.lcp))
            found = looks(job.lcp, at, job.answers[at], job.answers)
            alarms += any(each.drifted for each in found)
            plain += _plain(job, sample_positions(len(job.lcp), seed, size))
        rows.append(
            {
                "job": job.name,
                "requests": len(job.lcp),
                "sampled": size,
                "strata": len(strata(job.lcp)),
                "runs": runs,
                "with_an_alarm": alarms / runs,
                "plain_comparison": plain / runs,
            }
        )
    return rows


def detection(data: Path, requests: int, least: float) -> list[dict[str, Any]]:
    """Jobs whose answers turn from those of one window into those of the next, half-way through.

    Only pairs whose means differ by a factor of `least` or more; a job without prefixes.
    """
    rows: list[dict[str, Any]] = []
    for name, spread in windows(data).items():
        means = [float(lengths @ shares) for lengths, shares in spread]
        pairs = [
            (first, first + 1)
            for first in range(len(spread) - 1)
            if means[first] and not 1 / least < means[first + 1] / means[first] < least
        ]
        soon = early = 0
        for first, second in pairs:
            dice = np.random.default_rng(first)
            old, new = (
                dice.choice(*spread[each][:1], p=spread[each][1], size=requests)
                for each in (first, second)
            )
            answers = np.where(np.arange(requests) < requests // 2, old, new)
            lcp = np.zeros(requests, np.int64)
            at = sample_positions(requests, first)
            found = [each.drifted for each in looks(lcp, at, old[at], answers)]
            middle = _LOOKS // 2 + 1
            early += any(found[:middle])
            soon += any(found[middle : middle + 2])
        if pairs:
            rows.append(
                {
                    "client": name,
                    "requests": requests,
                    "shifts": len(pairs),
                    "seen_in_two_looks": soon / len(pairs),
                    "alarm_before": early / len(pairs),
                }
            )
    return rows
