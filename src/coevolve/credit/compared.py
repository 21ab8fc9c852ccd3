"""Credit by comparisons: a function says which of two joint responses to a problem is better."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from coevolve.credit.at_once import check_compared, groups_of
from coevolve.files import shown
from coevolve.recipe.components import from_file
from coevolve.settings import checked_call
from coevolve.types import Case, Credit, Episode, Reward

Comparator = Callable[[Mapping[str, Any], Mapping[str, str], Mapping[str, str]], Any]
"""(the problem's columns, role -> text, role -> text of another joint response) -> a number: above 0 if the first is
better, below 0 if the second is, 0 for a tie."""


@checked_call("algorithm.credit")
def compared(*, by: str | Callable[..., Any]) -> Credit:
    """The number of joint responses to the same problem that are worse than the turn's own, less those that are better.

    by: a function, or ``file.py:name``, ``(problem, first, second) -> number``: problem has the columns, first and
    second map each role to its last text; above 0 the first is better, below 0 the second, 0 is a tie. Every pair is
    compared in both orders, G (G - 1) calls for G members, and the answers must agree. For ``madpo``, and algorithms
    that use only the order. For plays of one joint response, with at least two ``members``. Raises ValueError, in one
    line, for a comparator that contradicts itself or returns no number, for one member, and for another play.
    """
    compare = from_file(by, (), "algorithm.credit.by") if isinstance(by, str) else by
    if not callable(compare):
        raise ValueError(f"algorithm.credit: by is {shown(by)}; want a function (problem, first, second) -> number")

    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        check_compared(episodes, "credit compared")
        cases = [_case(episode) for episode in episodes]
        wins, groups = [0.0] * len(episodes), groups_of(episodes)
        for group in groups:
            for one, other in itertools.combinations(group, 2):
                better = _asked(compare, cases[one], cases[other])
                wins[one] += better
                wins[other] -= better
        return [[wins[number]] * len(episode.turns) for number, episode in enumerate(episodes)]

    return credit


def _case(episode: Episode) -> Case:
    if len(episode.joints) != 1:
        raise ValueError(
            f"credit compared: problem {episode.problem.id!r} has {len(episode.joints)} joint responses; it compares "
            "members of one each (play: rounds or chain)"
        )
    return Case(episode.problem, episode.joints[0].turns)


def _asked(compare: Comparator, one: Case, other: Case) -> int:
    """Compare in both orders; returns 1 if the first is better, -1 if the second is, 0 for a tie."""
    forth, back = _sign(compare, one, other), _sign(compare, other, one)
    if forth != -back:
        raise ValueError(
            f"credit compared: the comparator contradicts itself on problem {one.problem.id!r}: of "
            f"{shown(one.said())} and {shown(other.said())} it says {forth:+d} and, the other way round, {back:+d}; "
            "want the opposite sign, or 0 twice"
        )
    return forth


def _sign(compare: Comparator, one: Case, other: Case) -> int:
    found = compare(one.problem.data, one.said(), other.said())
    number = _number(found)
    known = isinstance(number, Real) and number == number  # NaN is not itself
    if not known:
        raise ValueError(f"credit compared: the comparator returned {shown(found)}; want a number")
    return int(number > 0) - int(number < 0)


def _number(found: Any) -> Any:
    """Return the number in an array or tensor of one element; any other value unchanged."""
    try:
        return found.item() if hasattr(found, "item") else found
    except (RuntimeError, ValueError):  # it holds several
        return found
