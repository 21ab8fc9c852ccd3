"""Small programs to write together, such as "f(x): add 3, then multiply by 2", with tests made by the true function.

They are the problems of task `mini-coop`, and what `coevolve-coop` is pre-trained on: one operation on a whole number
(atomic), or two, one after the other (decomposable).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from coevolve.tasks.worlds.split import Split, split_of_key

Kind = Literal["decomposable", "atomic"]

ENTRY = "f"
"""The name of the function that is tested."""

_INPUTS = range(-12, 31)
_CONSTANTS = (2, 9)


@dataclass(frozen=True)
class Operation:
    """An operation on ``{x}``: its words, its Python, its true function, what it is mistaken for, and how often (rate).

    constants: first and last value of ``{k}``, None where there is none.
    """

    words: str
    python: str
    run: Callable[[int, int], int]
    mistaken: str
    rate: float
    constants: tuple[int, int] | None


OPERATIONS = (
    Operation("add {k}", "{x}+{k}", lambda x, k: x + k, "{x}-{k}", 0.1, _CONSTANTS),
    Operation("subtract {k}", "{x}-{k}", lambda x, k: x - k, "{x}+{k}", 0.1, _CONSTANTS),
    Operation("multiply by {k}", "{x}*{k}", lambda x, k: x * k, "{x}+{k}", 0.15, _CONSTANTS),
    Operation("divide by {k}", "{x}//{k}", lambda x, k: x // k, "{x}/{k}", 0.55, _CONSTANTS),
    Operation("take modulo {k}", "{x}%{k}", lambda x, k: x % k, "{x}//{k}", 0.5, _CONSTANTS),
    Operation("make at least {k}", "max({x},{k})", lambda x, k: max(x, k), "min({x},{k})", 0.55, _CONSTANTS),
    Operation("make at most {k}", "min({x},{k})", lambda x, k: min(x, k), "max({x},{k})", 0.55, _CONSTANTS),
    Operation("negate", "-{x}", lambda x, _: -x, "{x}", 0.2, None),
    Operation("make positive", "abs({x})", lambda x, _: abs(x), "-{x}", 0.4, None),
    Operation("square", "{x}**2", lambda x, _: x**2, "{x}*2", 0.4, None),
)


@dataclass(frozen=True)
class Step:
    """An operation with its constant; 0 where it has none."""

    operation: Operation
    constant: int

    @property
    def words(self) -> str:
        return self.operation.words.format(k=self.constant)

    def __call__(self, x: int) -> int:
        return self.operation.run(x, self.constant)


@dataclass(frozen=True)
class Wanted:
    """A function to be written: its steps, and the asserts that test it."""

    steps: tuple[Step, ...]
    tests: str

    @property
    def kind(self) -> Kind:
        return "atomic" if len(self.steps) == 1 else "decomposable"

    @property
    def text(self) -> str:
        """The problem as prompts show it."""
        return f"{ENTRY}(x): {', then '.join(step.words for step in self.steps)}"


def wanted(split: Split, kind: Kind, count: int, rng: Random, distinct: bool = False) -> list[Wanted]:
    """Return ``count`` functions of a kind from a split; ``distinct``: none twice with the same tests.

    A sequence of steps belongs to one split only; one step of a decomposable problem may be an atomic problem of any
    split. Raises ValueError for an unknown split or kind.
    """
    if split not in get_args(Split) or kind not in get_args(Kind):
        known = ", ".join([*get_args(Split), *get_args(Kind)])
        raise ValueError(f"wanted: no split {split!r} of kind {kind!r}; known: {known}")
    found: list[Wanted] = []
    seen: set[Wanted] = set()
    while len(found) < count:
        steps = tuple(_step(rng) for _ in range(1 if kind == "atomic" else 2))
        if split_of(steps) != split or not _needs_all(steps):
            continue
        made = Wanted(steps, _tests(steps, rng))
        if not (distinct and made in seen):
            found.append(made)
            seen.add(made)
    return found


def split_of(steps: Sequence[Step]) -> Split:
    """Return the split of these steps in this order."""
    return split_of_key("|".join(step.words for step in steps))


def composed(steps: Sequence[Step], x: int) -> int:
    """Return the result of the steps, one after the other."""
    for step in steps:
        x = step(x)
    return x


def _step(rng: Random) -> Step:
    operation = rng.choice(OPERATIONS)
    return Step(operation, rng.randint(*operation.constants) if operation.constants else 0)


def _needs_all(steps: Sequence[Step]) -> bool:
    """Return whether no step can be left out and the result depends on the argument."""
    return len({composed(steps, x) for x in _INPUTS}) > 2 and _tells_apart(steps, _INPUTS)


def _tells_apart(steps: Sequence[Step], inputs: Sequence[int]) -> bool:
    """Return whether each way to leave a step out, or all of them, is wrong on some input."""
    shorter = [[*steps[:i], *steps[i + 1 :]] for i in range(len(steps))] + [[]]
    return all(any(composed(less, x) != composed(steps, x) for x in inputs) for less in shorter)


def _tests(steps: Sequence[Step], rng: Random) -> str:
    """Return three to five asserts that no shorter program passes."""
    while True:
        inputs = sorted(rng.sample(_INPUTS, rng.randint(3, 5)))
        if _tells_apart(steps, inputs) and len({composed(steps, x) for x in inputs}) > 1:
            return "\n".join(f"assert candidate({x}) == {composed(steps, x)}" for x in inputs)
