"""Scoring of given texts by a task's reward, without a model, a play or a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from coevolve.interfaces import Task
from coevolve.rewards.function import silent
from coevolve.settings import checked_call
from coevolve.types import Case, Metrics, Problem, Role

Scoring = Literal["ours", "paper"]
"""The choice of a reward's rules, where ours are stricter than the released code of its paper."""


@checked_call("task")
def rules(*, scoring: Scoring) -> Scoring:
    """Return the choice; ``checked_call`` raises ValueError for another one."""
    return scoring


@dataclass(frozen=True)
class Score:
    """The score of texts. rewards: role -> what it is paid. parts: the task's named components, {} if it has none;
    where a reward is paid level by level, ``levels_passed`` is among them.
    """

    rewards: Mapping[Role, float]
    parts: Metrics


def score_texts(task: Task, problem: Problem, texts: Mapping[Role, str]) -> Score:
    """Return what a task pays for texts on a problem, with its parts. texts: role -> text, one turn per role.

    Raises ValueError for roles that the task does not pay together, and any error of its reward.
    """
    turns = tuple(replace(turn, text=texts[turn.role]) for turn in silent(problem, list(texts)).turns)
    case = Case(problem, turns)
    [paid] = task.reward([case])
    parts = getattr(task, "parts", None)
    [found] = [{}] if parts is None else parts([case])
    return Score(dict(zip(texts, paid, strict=True)), dict(found))
