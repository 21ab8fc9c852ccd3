"""What the team was paid for the first joint response that a turn was part of."""

from __future__ import annotations

from statistics import fmean

from coevolve.credit.by_episode import by_episode
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode


@checked_call("algorithm.credit")
def first_joint() -> Credit:
    """The team's pay of the first joint that a turn was part of, the mean over its agents, and of nothing else.

    For plays that put a turn into further joints to find out what *another* one is worth (``resampled``, ``hinted``):
    there the gradient of a turn's first joint is that of the team's pay, and what its partners' other turns came to is
    noise, or, where they had heard it, theirs to answer for. Raises ValueError for a turn that nobody scored.
    """

    def credit(episode: Episode) -> list[float]:
        paid: dict[int, float] = {}
        for joint in episode.joints:
            worth = fmean(joint.by_role().values())
            for turn in joint.turns:
                paid.setdefault(id(turn), worth)
        if unpaid := [turn.role for turn in episode.turns if id(turn) not in paid]:
            raise ValueError(
                f"credit first_joint: problem {episode.problem.id!r}: a turn of role {unpaid[0]!r} was part of no joint"
                "; team_return lets a turn answer for what followed it"
            )
        return [paid[id(turn)] for turn in episode.turns]

    return by_episode(credit)
