"""How often drafted tokens hold."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """What drafts were worth, per step of a sequence.

    Attributes:
        drafted: Share of the steps that had a draft, 0 to 1; a look-up finds none in most texts.
        reach: For each position of a draft, the share of drafts of which the tokens up to there
            were accepted; so none is larger than the one before it.
        measured: Whether it was counted, or is assumed.
    """

    drafted: float
    reach: tuple[float, ...]
    measured: bool = True

    def tokens(self, drafts: int) -> float:
        """Expected tokens of a step with drafts of so many tokens, from 1.

        1 + drafted x sum of the reach of each position (Leviathan et al. 2023, with a share for
        each position in place of one for all). Positions beyond those known keep the ratio of the
        last two.
        """
        known = (1.0, *self.reach)
        last, before = known[-1], known[max(len(known) - 2, 0)]
        ratio = last / before if self.reach and before else 0.0
        further = range(1, max(drafts - len(self.reach), 0) + 1)
        beyond = [last * ratio**position for position in further]
        return 1 + self.drafted * (sum(self.reach[:drafts]) + sum(beyond))


def counted(decode_tokens: int, drafts: int, accepted: Sequence[int]) -> Acceptance | None:
    """From the counts of a run that speculated; None if it made no draft.

    Args:
        decode_tokens: Generated tokens but the first of each answer, which its prompt gives.
        drafts: Times that tokens were drafted.
        accepted: Accepted tokens by position in the draft.
    """
    if not drafts or not accepted:
        return None
    steps = max(decode_tokens - sum(accepted), drafts)
    return Acceptance(drafts / steps, tuple(each / drafts for each in accepted))


def assumed(each: float, positions: int = 8) -> Acceptance:
    """A draft in every step, each of its tokens accepted with the same chance if those before it.

    Args:
        each: The chance, 0 to 1.
        positions: Of a draft.
    """
    reach = tuple(each**position for position in range(1, positions + 1))
    return Acceptance(1.0, reach, measured=False)
