"""The team's reward for the first joint response that a turn is part of."""

from __future__ import annotations

from statistics import fmean

from coevolve.credit.by_episode import by_episode
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode


@checked_call("algorithm.credit")
def first_joint() -> Credit:
    """The team's reward for the first joint that a turn is part of, the mean over its agents.

    For plays that put a turn into further joints to evaluate *another* one (``resampled``, ``hinted``): there the
    gradient of a turn's first joint is that of the team's reward. The rewards of its partners' other turns are noise
    for it, or, where these had heard it, their own credit. Raises ValueError for a turn that was not scored.
    """

    def credit(episode: Episode) -> list[float]:
        first = episode.first_joints()
        if unpaid := [turn.role for turn in episode.turns if id(turn) not in first]:
            raise ValueError(
                f"credit first_joint: problem {episode.problem.id!r}: a turn of role {unpaid[0]!r} was part of no joint"
                "; team_return lets a turn answer for what followed it"
            )
        paid = [fmean(joint.by_role().values()) for joint in episode.joints]
        return [paid[first[id(turn)]] for turn in episode.turns]

    return by_episode(credit)
