"""CORY's collective reward: the sum of the team's rewards."""

from __future__ import annotations

from coevolve.credit.by_episode import by_episode, to_be_added
from coevolve.settings import checked_call
from coevolve.types import Credit


@checked_call("algorithm.credit")
def team_sum() -> Credit:
    """The sum of all rewards of the episode, for every turn (CORY's collective reward, arXiv 2410.06101, section 3).

    For plays of one joint response at a time (``chain``, ``rounds``, ``discussion``). Raises ValueError for others.
    """
    return by_episode(lambda episode: [sum(to_be_added(episode, "team_sum"))] * len(episode.turns))
