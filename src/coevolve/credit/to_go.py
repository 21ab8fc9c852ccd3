"""The reward to go: the rewards from a turn on."""

from __future__ import annotations

from coevolve.credit.by_episode import by_episode, to_be_added
from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit, Episode


@checked_call("algorithm.credit")
def to_go(gamma: Fraction = 1.0) -> Credit:
    """The turn's own reward plus those of the turns after it, discounted by gamma per turn.

    If no later role changes an earlier reward, as in CORY's tasks, which score every answer by itself, this has the
    same expected gradient as team_sum and less variance: the observer's credit is r2 alone, the pioneer's r1 + r2. For
    the same plays.
    """

    def credit(episode: Episode) -> list[float]:
        total, returns = 0.0, []
        for reward in reversed(to_be_added(episode, "to_go")):
            total = reward + gamma * total
            returns.append(total)
        return returns[::-1]

    return by_episode(credit)
