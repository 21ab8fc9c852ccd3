"""Credit from the rewards of the turns: ``Turn.reward``, the mean where a turn is part of several joints."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit, Episode, Reward


def by_episode(rule: Callable[[Episode], list[float]]) -> Credit:
    """A rule that looks at one episode at a time, as a rule for all of a step. rule: episode -> one number per turn."""

    @functools.wraps(rule)
    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        return [rule(episode) for episode in episodes]

    return credit


def _paid(episode: Episode) -> list[float]:
    """Rewards in spoken order; a turn nobody scored was paid 0."""
    return [turn.reward or 0.0 for turn in episode.turns]


def _all_paid(episode: Episode, rule: str) -> list[float]:
    """The same, to be added up. Raises ValueError where rewards of a role do not add up: in joint responses that
    continue the same one, and for several turns of one joint, each of which is paid for all of it."""
    places = [(joint.after, turn.role) for joint in episode.joints for turn in joint.turns]
    if again := [role for (_, role), count in Counter(places).items() if count > 1]:
        raise ValueError(
            f"credit {rule}: problem {episode.problem.id!r}: role {again[0]!r} has several turns in one joint "
            "response, or in joint responses that stand beside each other, whose rewards do not add up; it is for "
            "plays of one at a time (chain, rounds, discussion); team_return is for any"
        )
    return _paid(episode)


@checked_call("algorithm.credit")
def own_reward() -> Credit:
    """Each turn its own reward: independent learners."""
    return by_episode(_paid)


@checked_call("algorithm.credit")
def team_sum() -> Credit:
    """Every turn the sum over the team (CORY's collective reward, arXiv 2410.06101, section 3).

    For plays of one joint response at a time (``chain``, ``rounds``, ``discussion``). Raises ValueError for another.
    """
    return by_episode(lambda episode: [sum(_all_paid(episode, "team_sum"))] * len(episode.turns))


@checked_call("algorithm.credit")
def team_mean() -> Credit:
    """Every turn the mean over the team: team_sum on the scale of one reward, for the same plays."""
    return by_episode(lambda episode: [sum(_all_paid(episode, "team_mean")) / len(episode.turns)] * len(episode.turns))


@checked_call("algorithm.credit")
def to_go(gamma: Fraction = 1.0) -> Credit:
    """Each turn its own reward and those of the turns after it, discounted by gamma per turn.

    Where no later role changes an earlier reward, as in CORY's tasks, which score every answer by itself, this has the
    same expected gradient as team_sum and less variance: the observer is paid r2 alone, the pioneer r1 + r2. For the
    same plays.
    """

    def credit(episode: Episode) -> list[float]:
        total, returns = 0.0, []
        for reward in reversed(_all_paid(episode, "to_go")):
            total = reward + gamma * total
            returns.append(total)
        return returns[::-1]

    return by_episode(credit)
