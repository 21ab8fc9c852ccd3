"""Several rewards as one: their weighted sum, and what each of them gave, to be logged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from coevolve.recipe.components import component
from coevolve.recipe.inputs import did_you_mean
from coevolve.rewards.function import user_reward
from coevolve.rewards.judge import JUDGE, Judge
from coevolve.rewards.model import ModelReward
from coevolve.rewards.waiting import Paid, Scorer, finished
from coevolve.types import Case, Metrics, Problem, Role, Turn

OneReward = str | Callable[..., Any] | dict[str, Any]
"""A function, ``file.py:name``, or one of ``REWARDS`` with its settings."""

RewardSpec = OneReward | list[OneReward]

REWARDS: Mapping[str, Callable[..., Scorer]] = {"classifier": ModelReward, JUDGE: Judge}
"""Rewards that are no functions of the user's, by the name that a recipe has for them."""


_MOST = 1 << 16
"""Cases whose parts are remembered, if nobody asks for them."""


class Rewards:
    """The weighted sum of several rewards, as a task's ``reward``: cases -> one number per turn.

    A reward that gives None for a case does not apply to it and is left out of its sum. Raises ValueError for a case to
    which none applies, and what the rewards raise.
    """

    def __init__(self, scorers: Sequence[Scorer], weights: Sequence[float]) -> None:
        self.scorers, self.weights = scorers, weights
        self.names = _distinct([scorer.name for scorer in scorers])
        self.tells = len(scorers) > 1 or any(scorer.tells for scorer in scorers)
        """Whether ``parts`` say more than the reward."""
        self._known: dict[tuple[int, ...], tuple[tuple[Turn, ...], Metrics]] | None = None
        """Turns, by identity, -> they, so that no others get their identity, and the parts of what they were paid; None
        where nobody asks for parts."""

    def __call__(self, cases: Sequence[Case]) -> list[list[float]]:
        paid, parts = self._judged(cases)
        if self._known is not None:
            if len(self._known) > _MOST:
                self._known.clear()
            self._known |= {_key(case): (case.turns, found) for case, found in zip(cases, parts, strict=True)}
        return paid

    def parts(self) -> Callable[[Sequence[Case]], list[Metrics]]:
        """A task's ``parts``: what each reward that applies gave cases, the mean over their turns, and what else it has
        to tell.

        Of cases that were paid since they were last asked for they are known, from now on; others are judged.
        """
        self._known = {}
        return self._parts_of

    def _parts_of(self, cases: Sequence[Case]) -> list[Metrics]:
        remembered = self._known or {}
        known = {_key(case): remembered[_key(case)] for case in cases if _key(case) in remembered}
        if known:  # what was paid after these may be the next step's, sampled ahead; nobody asks for older ones
            last = max(number for number, key in enumerate(remembered) if key in known)
            self._known = dict(islice(remembered.items(), last + 1, None))
        if others := [case for case in cases if _key(case) not in known]:
            _, judged = self._judged(others)
            known |= {_key(case): (case.turns, found) for case, found in zip(others, judged, strict=True)}
        return [known[_key(case)][1] for case in cases]

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raises ValueError if one of them could not judge one turn of each role."""
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
    """What a recipe or a program says of rewards: one or a list of them, or a Rubric of verifiers, which is a list with
    weights. weights: one per reward; 1 each if None. Raises ValueError for what is none, and for other weights."""
    named: Mapping[str, Any] = {}
    if hasattr(spec, "funcs") and hasattr(spec, "weights"):  # a Rubric, which need not be installed here
        spec, weights, named = list(spec.funcs), weights or list(spec.weights), dict(getattr(spec, "class_objects", {}))
    scorers = [_scorer(one, named) for one in (spec if isinstance(spec, list | tuple) else [spec])]
    if not scorers:
        raise ValueError("task.reward is empty; want a function, or a list of them")
    if weights is not None and len(weights) != len(scorers):
        raise ValueError(f"task.reward_weights are {list(weights)}; want {len(scorers)}, one per reward")
    return Rewards(scorers, [1.0] * len(scorers) if weights is None else [float(w) for w in weights])


def _scorer(one: Any, named: Mapping[str, Any]) -> Scorer:
    if not isinstance(one, Mapping):
        return user_reward(one, named)
    name = one.get("name")
    if name not in REWARDS:
        near = did_you_mean(str(name), REWARDS)
        raise ValueError(f"task.reward: name is {name!r}{near}; known: {', '.join(REWARDS)}, or file.py:name alone")
    return component(one, REWARDS, f"task.reward, {name}")


def _distinct(names: Sequence[str]) -> list[str]:
    """The names as columns have them, the second of a kind with a number."""
    plain = [re.sub(r"[^\w.-]+", "-", name).strip("-") or "reward" for name in names]
    seen: Counter[str] = Counter()
    found = []
    for name in plain:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found


def _key(case: Case) -> tuple[int, ...]:
    return tuple(map(id, case.turns))
