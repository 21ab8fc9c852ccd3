"""Word problems from a grammar: "Tom has 7 pears. Ann gives Tom 5 more. How many pears does Tom have now?"

They are the problems of task `arithmetic`, and what `coevolve-sums` is pre-trained on: a number, one to three steps
that each add, subtract, multiply or divide, and the question what is left. No intermediate result is above 40.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from coevolve.tasks.worlds.split import Split, split_of_key

Operation = Literal["+", "-", "*", "/"]
Step = tuple[Operation, int]

LARGEST = 40  # of all intermediate results; the smallest is 1
_STEP_COUNTS, _STEP_WEIGHTS = (1, 2, 3), (3, 4, 3)

_NAMES = (
    "Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kim", "Leo", "Mia", "Nils", "Olga",
    "Tom",
)  # fmt: skip
_THINGS = (
    "apples", "balls", "books", "cards", "coins", "cups", "eggs", "hats", "keys", "nuts", "pears", "pens", "rings",
    "shells", "stamps", "toys",
)  # fmt: skip

_BEGINNINGS = (
    "{name} has {n} {things}.",
    "There are {n} {things} on the desk of {name}.",
    "At first {name} has {n} {things}.",
)
_BOXES = ("{name} has {n} boxes with {k} {things} each.", "{name} fills {n} bags with {k} {things} each.")
_EVENTS: dict[Operation, tuple[str, ...]] = {
    "+": ("{friend} gives {name} {k} more.", "{name} finds {k} more.", "{name} buys {k} from {friend}."),
    "-": ("{name} gives {friend} {k}.", "{name} loses {k} of them.", "{name} sells {k} to {friend}."),
    "*": ("A year later {name} has {k} times as many.", "{name} comes back with {k} times as many."),
    "/": (
        "{name} makes {k} equal piles and keeps one.",
        "{name} and others share them, each of the {k} gets the same.",
    ),
}
_QUESTIONS = ("How many {things} does {name} have now?", "With how many {things} does {name} end?")


@dataclass(frozen=True)
class WordProblem:
    """A question and how it is solved: ``start``, then each step's operation with its number."""

    question: str
    start: int
    steps: tuple[Step, ...]

    @property
    def gold(self) -> int:
        """The right answer."""
        value = self.start
        for operation, number in self.steps:
            value = apply(operation, value, number)
        return value


def apply(operation: Operation, value: int, number: int) -> int:
    """Return the result of one exact step. Raises ValueError for a division with a remainder."""
    if operation == "+":
        return value + number
    if operation == "-":
        return value - number
    if operation == "*":
        return value * number
    if value % number:
        raise ValueError(f"{value} cannot be divided by {number} without a rest")
    return value // number


def possible(value: int, number: int, largest: int) -> tuple[Operation, ...]:
    """Return the operations that lead from ``value`` by ``number`` to a whole number from 1 to ``largest``."""
    found: list[Operation] = [op for op in get_args(Operation) if op != "/" or value % number == 0]
    return tuple(op for op in found if 1 <= apply(op, value, number) <= largest)


def problems(split: Split, count: int, rng: Random, distinct: bool = False) -> list[WordProblem]:
    """Return ``count`` problems of a split; ``distinct``: no question twice.

    A text without its names and things ("... has 7 ... gives ... 5 more ...") belongs to one split only, so no other
    split has the same combination of templates and numbers. Raises ValueError for an unknown split.
    """
    if split not in get_args(Split):
        raise ValueError(f"problems: no split {split!r}; use one of {', '.join(get_args(Split))}")
    found: list[WordProblem] = []
    seen: set[str] = set()
    while len(found) < count:
        pattern, start, steps = _pattern(rng)
        name, friend = rng.sample(_NAMES, 2)
        question = pattern.format(name=name, friend=friend, things=rng.choice(_THINGS))
        if split_of_key(pattern) == split and not (distinct and question in seen):
            found.append(WordProblem(question, start, steps))
            seen.add(question)
    return found


def _pattern(rng: Random) -> tuple[str, int, tuple[Step, ...]]:
    """Draw a text without names and things, and its solution (start, steps)."""
    wanted = rng.choices(_STEP_COUNTS, _STEP_WEIGHTS)[0]
    steps: list[Step] = []
    if rng.random() < 0.25:
        start, number = rng.randint(2, 8), rng.randint(2, 5)
        sentences = [_filled(rng.choice(_BOXES), n=start, k=number)]
        steps.append(("*", number))
        value = start * number
    else:
        start = value = rng.randint(2, 15)
        sentences = [_filled(rng.choice(_BEGINNINGS), n=start)]
    while len(steps) < wanted:
        operation, number = _step(rng, value)
        steps.append((operation, number))
        value = apply(operation, value, number)
        sentences.append(_filled(rng.choice(_EVENTS[operation]), k=number))
    return " ".join([*sentences, rng.choice(_QUESTIONS)]), start, tuple(steps)


def _step(rng: Random, value: int) -> Step:
    """Draw a step from ``value`` that stays in range, each operation as likely as the numbers allow."""
    while True:
        operation = rng.choice(get_args(Operation))
        number = rng.randint(2, 9) if operation in "+-" else rng.randint(2, 5)
        if operation in possible(value, number, LARGEST):
            return operation, number


def _filled(template: str, **numbers: int) -> str:
    """Return the template with its numbers filled in; names and things stay open."""
    return template.format(name="{name}", friend="{friend}", things="{things}", **numbers)
