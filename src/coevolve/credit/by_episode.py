"""Credit rules for one episode at a time, and the rewards that they use.

A turn's reward is ``Turn.reward``, the mean where the turn is part of several joints.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

from coevolve.types import Credit, Episode, Reward


def by_episode(rule: Callable[[Episode], list[float]]) -> Credit:
    """Return a credit rule that applies ``rule`` to each episode of a step. rule: episode -> one number per turn."""

    @functools.wraps(rule)
    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        return [rule(episode) for episode in episodes]

    return credit


def paid(episode: Episode) -> list[float]:
    """Return the rewards of the turns in the order they were sampled, 0 for a turn that was not scored."""
    return [turn.reward or 0.0 for turn in episode.turns]


def to_be_added(episode: Episode, rule: str) -> list[float]:
    """Return the rewards as ``paid`` does, for sums. Raises ValueError where a role's rewards do not add up: in several
    joints that continue the same one, and for several turns of one joint, each of which is paid for all of it."""
    places = [(joint.after, turn.role) for joint in episode.joints for turn in joint.turns]
    if again := [role for (_, role), count in Counter(places).items() if count > 1]:
        raise ValueError(
            f"credit {rule}: problem {episode.problem.id!r}: role {again[0]!r} has several turns in one joint "
            "response, or in joint responses that stand beside each other, whose rewards do not add up; it is for "
            "plays of one at a time (chain, rounds, discussion); team_return is for any"
        )
    return paid(episode)
