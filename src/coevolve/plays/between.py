"""Helpers between two turns of a play: whether it ends, and what each agent hears next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Annotated

from pydantic import Field

from coevolve.play import Feedback, Roles, do, score, together
from coevolve.settings import Count
from coevolve.types import Problem, Role, Turn

Done = Callable[[Sequence[float]], bool]
"""The rewards of a joint -> whether the interaction ends after it."""

Heard = dict[Role, tuple[Turn | str, ...]]
"""Each role's own history: its turns, each followed by the note on it."""


def silence(team: Roles) -> Heard:
    """Return the history before the first turn: empty for each role."""
    return {role: () for role in team}  # noqa: C420  (fromkeys would be typed as a dict of empty tuples)


Threshold = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A mean reward. Strict, so that ``done: true`` in a recipe is an error."""

Several = Annotated[Count, Field(ge=2)]
"""A number of responses that are compared with each other."""


def stops(done: Threshold | Done | None) -> Done:
    """Return ``done`` as a function: None never stops, a number stops if the mean reward is above it."""
    if done is None:
        return lambda rewards: False
    if callable(done):
        return done
    threshold = done
    return lambda rewards: sum(rewards) / len(rewards) > threshold


async def best_scored(team: Roles, joints: Sequence[tuple[Turn, ...]], after: Sequence[Turn]) -> tuple[Turn, ...]:
    """Score these joints and return the one with the largest mean reward. after: the joint that all of them continue;
    its return does not include theirs."""
    paid = await together(*(score(team, acts, after=after, answered=False) for acts in joints))
    return max(zip(paid, joints, strict=True), key=lambda one: fmean(one[0]))[1]


async def notes(feedback: bool | Feedback, team: Roles, p: Problem, acts: Sequence[Turn]) -> Sequence[str]:
    """Return one text per turn: from the task's feedback (True), from the given function, or empty (False)."""
    if feedback is False:
        return [""] * len(acts)
    told = await do(team.feedback if feedback is True else feedback, p, acts)
    if not isinstance(told, Sequence) or len(told) != len(acts) or not all(isinstance(note, str) for note in told):
        raise ValueError(f"feedback returned {told!r}; want a list of {len(acts)} texts, one per turn")
    return told


def heard_next(heard: Heard, acts: Sequence[Turn], told: Sequence[str]) -> Heard:
    """Return each role's history, extended by its turn and the note on it."""
    return {act.role: (*heard[act.role], act, note) for act, note in zip(acts, told, strict=True)}
