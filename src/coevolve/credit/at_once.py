"""What the rules need that ask for the pay of joint responses nobody gave: plays where all speak at once, once.

Nobody has heard anybody there (``rounds``), so whatever one agent said might stand beside whatever the others said in
any episode of the same problem, or beside nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from coevolve.types import Case, Episode, Problem, Reward, Turn

Key = TypeVar("Key")

Responses = tuple[Turn, ...]
"""What every agent said, always in the same order."""


def responses_of(episodes: Sequence[Episode], rule: str) -> list[Responses]:
    """Of every episode, in the order of its turns. Raises ValueError, naming the rule, for a play it is not for."""
    for episode in episodes:
        problem = f"credit {rule}: problem {episode.problem.id!r}"
        if len(episode.joints) != 1 or len(episode.turns) != len(episode.joints[0].turns):
            raise ValueError(
                f"{problem} has {len(episode.joints)} joint responses of {len(episode.turns)} turns; this credit is "
                "for plays where all speak at once, once (play: rounds); team_return is for any"
            )
        if heard := [turn.role for turn in episode.turns if any(isinstance(part, Turn) for part in turn.heard)]:
            raise ValueError(f"{problem}: role {heard[0]!r} has heard another one; it is for play: rounds")
    return [tuple(episode.turns) for episode in episodes]


def groups_of(episodes: Sequence[Episode]) -> list[list[int]]:
    """The numbers of the episodes of every problem."""
    found: dict[str, list[int]] = {}
    for number, episode in enumerate(episodes):
        found.setdefault(episode.problem.id, []).append(number)
    return list(found.values())


def paid(episode: Episode) -> float:
    """What the team was paid: the mean over its agents."""
    return fmean(episode.joints[0].rewards)


def would_be_paid(reward: Reward, asked: Mapping[Key, tuple[Problem, Responses]]) -> dict[Key, float]:
    """What the team would be paid for these joint responses."""
    rewards = reward([Case(problem, turns) for problem, turns in asked.values()])
    return {key: fmean(found) for key, found in zip(asked, rewards, strict=True)}
