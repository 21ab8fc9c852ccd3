"""Puzzles that are easier to check than to solve: answers are found by trying, and a try shows if one is right.

They are the problems of task `checkable`, of three families: "Which x of 3, 7, 12 has x*x mod 41 = 8?", "Which of 3, 8,
5 add up to 13?", and "Which of a, b, c make (a or not b) and ... true?". The possible answers are few and known, so
a guess is right with a probability of about a third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from random import Random
from typing import get_args

from coevolve.tasks.worlds.split import Split, split_of_key

_MODULUS = 41
_LETTERS = ("a", "b", "c")
_CLAUSES = 4


@dataclass(frozen=True)
class Puzzle:
    """A question. content: a text that is the same for every order of the question's numbers or clauses. right: the
    right answers. checks: every possible answer -> a check of it, in steps so small that each follows from the text
    just before; the answer is right if no step says "no"."""

    question: str
    content: str
    checks: dict[str, str]
    right: frozenset[str]


def puzzles(split: Split, count: int, rng: Random, distinct: bool = False) -> list[Puzzle]:
    """Return ``count`` puzzles of a split, a third of each family; ``distinct``: no question twice.

    A question belongs to one split only, in all its orders. Raises ValueError for an unknown split.
    """
    if split not in get_args(Split):
        raise ValueError(f"puzzles: no split {split!r}; use one of {', '.join(get_args(Split))}")
    found: list[Puzzle] = []
    seen: set[str] = set()
    while len(found) < count:
        one = _FAMILIES[len(found) % len(_FAMILIES)](rng)
        if split_of(one) == split and not (distinct and one.question in seen):
            found.append(one)
            seen.add(one.question)
    return found


def split_of(puzzle: Puzzle) -> Split:
    """Return the split of a puzzle, which all orders of its question share."""
    return split_of_key(puzzle.content)


def answer(text: str) -> str:
    """Return the final answer of a text, behind what it tried: its last sentence."""
    return text.strip().removesuffix(".").rpartition(".")[2].strip()


def same(one: str, other: str) -> bool:
    """Return whether two answers are the same up to order, such as ``8, 5`` and ``5, 8``."""
    return _in_order(one.split(",")) == _in_order(other.split(","))


def square(rng: Random) -> Puzzle:
    """Make a puzzle about the number whose square has a given remainder."""
    numbers = rng.sample(range(1, _MODULUS), 3)
    rests = {str(x): x * x % _MODULUS for x in numbers}
    wanted = rng.choice(list(rests.values()))
    return Puzzle(
        f"Which x of {', '.join(rests)} has x*x mod {_MODULUS} = {wanted}?",
        f"square {_in_order(rests)}: {wanted}",
        {x: f"{x} has {rest}. {_compared(rest, wanted)}" for x, rest in rests.items()},
        frozenset(x for x, rest in rests.items() if rest == wanted),
    )


def subset(rng: Random) -> Puzzle:
    """Make a puzzle about the two or three numbers, of three, with a given sum."""
    numbers = rng.sample(range(2, 16), 3)
    chosen = [some for size in (2, 3) for some in combinations(numbers, size)]
    wanted = sum(rng.choice(chosen))
    return Puzzle(
        f"Which of {_listed(numbers)} add up to {wanted}?",
        f"subset {_in_order(map(str, numbers))}: {wanted}",
        {_listed(some): f"{_added(some)} {_compared(sum(some), wanted)}" for some in chosen},
        frozenset(_listed(some) for some in chosen if sum(some) == wanted),
    )


def clauses(rng: Random) -> Puzzle:
    """Make a puzzle about the variables that make all clauses true: two or three of the eight assignments do."""
    every = [some for size in range(len(_LETTERS) + 1) for some in combinations(_LETTERS, size)]
    pairs = [(one, other) for x, y in combinations(_LETTERS, 2) for one in (x, f"not {x}") for other in (y, f"not {y}")]
    while True:
        drawn = rng.sample(pairs, _CLAUSES)
        found = {some: [any(_holds(literal, some) for literal in clause) for clause in drawn] for some in every}
        right = [some for some, holds in found.items() if all(holds)]
        if len(right) in (2, 3):
            break
    told = [f"({one} or {other})" for one, other in drawn]
    return Puzzle(
        f"Which of {_listed(_LETTERS)} make {' and '.join(told)} true?",
        f"clauses {_in_order(told)}",
        {_listed(some): _valued(drawn, some) for some in every},
        frozenset(map(_listed, right)),
    )


_FAMILIES: tuple[Callable[[Random], Puzzle], ...] = (square, subset, clauses)


def _listed(some: Iterable[object]) -> str:
    return ", ".join(map(str, some)) or "none"


def _in_order(some: Iterable[str]) -> str:
    return ", ".join(sorted(one.strip() for one in some))


def _added(numbers: tuple[int, ...]) -> str:
    sums = list(accumulate(numbers))
    return " ".join(
        f"{before}+{number}={after}." for (before, after), number in zip(pairwise(sums), numbers[1:], strict=True)
    )


def _compared(found: int, wanted: int) -> str:
    """Return a comparison digit by digit: ``00 yes 98 no.`` for 9 and 8."""
    return (
        " ".join(one + other + _yes(one == other) for one, other in zip(f"{found:02}", f"{wanted:02}", strict=True))
        + "."
    )


def _valued(drawn: Sequence[tuple[str, str]], true: tuple[str, ...]) -> str:
    """Return the value of each letter, then each clause: ``a true b false c false. not a false or b false no. ...``."""
    said = " ".join(f"{letter} {_told(letter, true)}" for letter in _LETTERS) + "."
    for one, other in drawn:
        said += f" {one} {_told(one, true)} or {other} {_told(other, true)}"
        said += _yes(_holds(one, true) or _holds(other, true)) + "."
    return said


def _yes(right: bool) -> str:
    return " yes" if right else " no"


def _told(literal: str, true: tuple[str, ...]) -> str:
    return str(_holds(literal, true)).lower()


def _holds(literal: str, true: tuple[str, ...]) -> bool:
    return (literal[-1] in true) != literal.startswith("not ")
