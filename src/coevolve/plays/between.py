"""What happens between two turns of a play: is it over, and what is each agent told?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Annotated

from pydantic import Field

from coevolve.play import Feedback, Roles, do, score, together
from coevolve.settings import Count
from coevolve.types import Problem, Role, Turn

Done = Callable[[Sequence[float]], bool]
"""The rewards of a joint -> whether its interaction ends here."""

Heard = dict[Role, tuple[Turn | str, ...]]
"""Every agent's own history: its turns, each followed by the note on it."""


def silence(team: Roles) -> Heard:
    """What everybody has heard before the first turn."""
    return {role: () for role in team}  # noqa: C420  (fromkeys would be typed as a dict of empty tuples)


Threshold = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A mean reward; ``done: true`` in a recipe is none."""

Several = Annotated[Count, Field(ge=2)]
"""How many responses are compared with each other."""


def stops(done: Threshold | Done | None) -> Done:
    """``done`` as a function: None never stops, a number stops where the mean reward is above it."""
    if done is None:
        return lambda rewards: False
    if callable(done):
        return done
    threshold = done
    return lambda rewards: sum(rewards) / len(rewards) > threshold


async def best_scored(team: Roles, joints: Sequence[tuple[Turn, ...]], after: Sequence[Turn]) -> tuple[Turn, ...]:
    """The joint that was paid most in the mean, of those that the task judges now. after: what each of them continues,
    whose return has nothing of theirs."""
    paid = await together(*(score(team, acts, after=after, answered=False) for acts in joints))
    return max(zip(paid, joints, strict=True), key=lambda one: fmean(one[0]))[1]


async def notes(feedback: bool | Feedback, team: Roles, p: Problem, acts: Sequence[Turn]) -> Sequence[str]:
    """One text per act: of the task's feedback (True), of the given function, or empty (False)."""
    if feedback is False:
        return [""] * len(acts)
    told = await do(team.feedback if feedback is True else feedback, p, acts)
    if not isinstance(told, Sequence) or len(told) != len(acts) or not all(isinstance(note, str) for note in told):
        raise ValueError(f"feedback returned {told!r}; want a list of {len(acts)} texts, one per turn")
    return told


def heard_next(heard: Heard, acts: Sequence[Turn], told: Sequence[str]) -> Heard:
    """Every agent's own history, longer by its act and the note on it."""
    return {act.role: (*heard[act.role], act, note) for act, note in zip(acts, told, strict=True)}
