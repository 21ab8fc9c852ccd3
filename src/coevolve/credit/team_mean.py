"""The mean over the team."""

from __future__ import annotations

from coevolve.credit.by_episode import by_episode, to_be_added
from coevolve.settings import checked_call
from coevolve.types import Credit


@checked_call("algorithm.credit")
def team_mean() -> Credit:
    """Every turn the mean over the team: team_sum on the scale of one reward, for the same plays."""
    return by_episode(
        lambda episode: [sum(to_be_added(episode, "team_mean")) / len(episode.turns)] * len(episode.turns)
    )
