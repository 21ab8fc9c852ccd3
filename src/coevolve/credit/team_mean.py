"""The mean of the team's rewards."""

from __future__ import annotations

from coevolve.credit.by_episode import by_episode, to_be_added
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode


@checked_call("algorithm.credit")
def team_mean() -> Credit:
    """The mean reward of the scored turns, for every turn: team_sum on the scale of one reward, for the same plays."""

    def credit(episode: Episode) -> list[float]:
        scored = sum(turn.reward is not None for turn in episode.turns)
        return [sum(to_be_added(episode, "team_mean")) / max(1, scored)] * len(episode.turns)

    return by_episode(credit)
