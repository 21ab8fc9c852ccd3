"""Helpers of credit rules that score joint responses which were not sampled, for plays in which all agents speak once,
at the same time.

There (``rounds``) no agent has heard another, so an agent's response can be combined with the responses that others
gave in any episode of the same problem, or with none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from coevolve.types import Case, Episode, Problem, Reward, Turn

Key = TypeVar("Key")

Responses = tuple[Turn, ...]
"""The turns of all agents, in the same order in every episode."""


def responses_of(episodes: Sequence[Episode], rule: str) -> list[Responses]:
    """Return the turns of each episode. Raises ValueError, naming the rule, for a play in which agents do not all speak
    once and at the same time."""
    for episode in episodes:
        problem = f"credit {rule}: problem {episode.problem.id!r}"
        if len(episode.joints) != 1 or len(episode.turns) != len(episode.joints[0].turns):
            raise ValueError(
                f"{problem} has {len(episode.joints)} joint responses of {len(episode.turns)} turns; this credit is "
                "for plays where all speak at once, once (play: rounds); team_return is for any"
            )
        if heard := [turn.role for turn in episode.turns if _may_know(turn)]:
            raise ValueError(
                f"{problem}: role {heard[0]!r} may have heard another one, as it was told "
                "something after one had spoken; this credit is for plays where all speak at once (play: rounds, or "
                "a single together(...))"
            )
    return [tuple(episode.turns) for episode in episodes]


def _may_know(turn: Turn) -> bool:
    """Return whether the turn's prompt may tell of another turn: it was shown one, or anything after another was made,
    since a play may pass on as text what was said."""
    return any(isinstance(part, Turn) for part in turn.heard) or bool(turn.asked and turn.heard)


def groups_of(episodes: Sequence[Episode]) -> list[list[int]]:
    """Return the positions of the episodes of each problem."""
    found: dict[str, list[int]] = {}
    for number, episode in enumerate(episodes):
        found.setdefault(episode.problem.id, []).append(number)
    return list(found.values())


def check_compared(episodes: Sequence[Episode], rule: str) -> None:
    """Raise ValueError, naming the rule, unless some problem has two episodes, which can be compared."""
    if len(groups_of(episodes)) == len(episodes):
        raise ValueError(f"{rule}: no problem has two joint responses to compare; set members to at least 2")


def team_reward(episode: Episode) -> float:
    """Return the team's reward: the mean over its agents."""
    return fmean(episode.joints[0].rewards)


def would_be_paid(reward: Reward, asked: Mapping[Key, tuple[Problem, Responses]]) -> dict[Key, float]:
    """Return the team's reward, the mean over its agents, for these joint responses, by key."""
    rewards = reward([Case(problem, turns) for problem, turns in asked.values()])
    return {key: fmean(found) for key, found in zip(asked, rewards, strict=True)}
