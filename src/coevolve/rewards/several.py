"""Several rewards combined into one: their weighted sum, and the value of each, to be logged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any
from weakref import ReferenceType, ref

from coevolve.names import did_you_mean
from coevolve.recipe.components import component
from coevolve.rewards.calling import read
from coevolve.rewards.function import UserReward
from coevolve.rewards.judge import JUDGE, Judge
from coevolve.rewards.model import ModelReward
from coevolve.rewards.waiting import Paid, Scorer, finished
from coevolve.types import Case, Metrics, Problem, Role, Turn

OneReward = str | Callable[..., Any] | dict[str, Any]
"""A function, ``file.py:name``, or one of ``REWARDS`` with its settings."""

RewardSpec = OneReward | list[OneReward]

REWARDS: Mapping[str, Callable[..., Scorer]] = {"classifier": ModelReward, JUDGE: Judge}
"""The built-in rewards, by their names in a recipe."""


class Rewards:
    """The weighted sum of several rewards, as a task's ``reward``: cases -> one number per turn.

    A reward that returns None for a case does not apply to it and is left out of its sum. Raises ValueError for a case
    to which no reward applies, and whatever the rewards raise.
    """

    def __init__(self, scorers: Sequence[Scorer], weights: Sequence[float]) -> None:
        self.scorers, self.weights = scorers, weights
        self.names = _distinct([scorer.name for scorer in scorers])
        self.tells = len(scorers) > 1 or any(scorer.tells for scorer in scorers)
        """Whether ``parts`` logs more than the reward itself."""
        self._known: dict[tuple[int, ...], tuple[Metrics, list[ReferenceType[Turn]]]] | None = None
        """ids of a case's turns -> (the parts of their reward, references that remove the entry with one of the turns).
        None until ``parts`` is first called."""

    def __call__(self, cases: Sequence[Case]) -> list[list[float]]:
        paid, parts = self._judged(cases)
        if self._known is not None:
            for case, found in zip(cases, parts, strict=True):
                self._remember(case, found, self._known)
        return paid

    def parts(self) -> Callable[[Sequence[Case]], list[Metrics]]:
        """Return a task's ``parts``: a function of cases that returns, for each, the mean over its turns of each reward
        that applies, and the other numbers that the reward logs.

        From this call on, the parts of rewarded cases are remembered as long as their turns; other cases are judged.
        """
        self._known = {}
        return self._parts_of

    def _parts_of(self, cases: Sequence[Case]) -> list[Metrics]:
        remembered = self._known or {}
        known = {_key(case): remembered[_key(case)][0] for case in cases if _key(case) in remembered}
        if others := [case for case in cases if _key(case) not in known]:
            _, judged = self._judged(others)
            known |= {_key(case): found for case, found in zip(others, judged, strict=True)}
        return [known[_key(case)] for case in cases]

    @staticmethod
    def _remember(
        case: Case, found: Metrics, known: dict[tuple[int, ...], tuple[Metrics, list[ReferenceType[Turn]]]]
    ) -> None:
        def forget(_: ReferenceType[Turn], key: tuple[int, ...] = _key(case)) -> None:
            known.pop(key, None)

        known[_key(case)] = found, [ref(turn, forget) for turn in case.turns]

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raise ValueError if one of the rewards could not judge one turn of each role."""
        for scorer in self.scorers:
            scorer.check(p, roles)

    def _judged(self, cases: Sequence[Case]) -> tuple[list[list[float]], list[Metrics]]:
        given = finished([scorer.start(cases) for scorer in self.scorers])
        by_case = [[one[number] for one in given] for number in range(len(cases))]
        sums = [self._sum(case, found) for case, found in zip(cases, by_case, strict=True)]
        return sums, [self._parts(found) for found in by_case]

    def _sum(self, case: Case, given: Sequence[Paid]) -> list[float]:
        weighed = [(w, paid.rewards) for w, paid in zip(self.weights, given, strict=True) if paid.rewards is not None]
        if not weighed:
            raise ValueError(
                f"no reward applies to problem {case.problem.id!r}: {', '.join(self.names)} gave None; have one of "
                "them give a number, or leave the problem out"
            )
        return [sum(w * rewards[place] for w, rewards in weighed) for place in range(len(case.turns))]

    def _parts(self, given: Sequence[Paid]) -> Metrics:
        found: Metrics = {}
        for name, paid in zip(self.names, given, strict=True):
            if paid.rewards and len(self.scorers) > 1:
                found[name] = sum(paid.rewards) / len(paid.rewards)
            found |= {f"{name}_{key}": value for key, value in paid.logged.items()}
        return found


def rewards_of(spec: Any, weights: Sequence[float] | None = None) -> Rewards:
    """Build the ``Rewards`` of a recipe or program from one reward, a list of them, or a verifiers Rubric, which is a
    list with weights. weights: one per reward; 1 each (or the Rubric's) if None. Raises ValueError for anything that is
    no reward, and for another number of weights."""
    named: Mapping[str, Any] = {}
    if hasattr(spec, "funcs") and hasattr(spec, "weights"):  # a Rubric, recognised without importing verifiers
        spec, weights, named = list(spec.funcs), weights or list(spec.weights), dict(getattr(spec, "class_objects", {}))
    scorers = [_scorer(one, named) for one in (spec if isinstance(spec, list | tuple) else [spec])]
    if not scorers:
        raise ValueError("task.reward is empty; want a function, or a list of them")
    if weights is not None and len(weights) != len(scorers):
        raise ValueError(f"task.reward_weights are {list(weights)}; want {len(scorers)}, one per reward")
    return Rewards(scorers, [1.0] * len(scorers) if weights is None else [float(w) for w in weights])


def _scorer(one: Any, named: Mapping[str, Any]) -> Scorer:
    if not isinstance(one, Mapping):
        return UserReward(read(one, "reward", named))
    name = one.get("name")
    if name not in REWARDS:
        near = did_you_mean(str(name), REWARDS)
        raise ValueError(f"task.reward: name is {name!r}{near}; known: {', '.join(REWARDS)}, or file.py:name alone")
    return component(one, REWARDS, f"task.reward, {name}")


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names as valid column names, made distinct: the second "length" becomes "length-2"."""
    plain = [re.sub(r"[^\w.-]+", "-", name).strip("-") or "reward" for name in names]
    found: list[str] = []
    for name in plain:
        others = (f"{name}-{number}" for number in count(2))
        found.append(name if name not in found else next(other for other in others if other not in [*found, *plain]))
    return found


def _key(case: Case) -> tuple[int, ...]:
    return tuple(map(id, case.turns))
