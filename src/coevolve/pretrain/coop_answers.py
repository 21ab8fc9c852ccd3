"""Helper and main functions with known flaws, in conventions that compete: what `coevolve-coop` learns to write.

Each author of a pair follows a convention of its own, drawn without a look at the other one, so that most pairs do not
fit. Flaws are drawn independently at the rates below, and the wrong operation at the rate of each operation; for half
of the operations the likelier one is wrong, so that the most likely answer is no good one either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from coevolve.tasks.worlds.coop import ENTRY, Kind, Step, Wanted

WRONG_CONSTANT = 0.1  # of a step
FORGOTTEN = 0.15  # the second step of two in one function
NO_BRACKETS = 0.3  # of two steps in one expression, where they are needed
NO_RETURN = 0.12  # of a function
SLIP = 0.15  # of a function: what makes it no Python
WRONG_NAME = 0.06  # of a function
TWO_LINES = 0.3  # of main functions that call aux: "y = aux(x)", then "return y+3"

AUX: dict[Kind, Mapping[str, float]] = {
    "decomposable": {"whole": 0.38, "first": 0.32, "second": 0.22, "same": 0.08},
    "atomic": {"whole": 0.7, "same": 0.3},
}
"""What a helper does: the whole job, its first step, its second, or nothing, "return x"."""

MAIN: dict[Kind, Mapping[str, float]] = {
    "decomposable": {"alone": 0.36, "finish": 0.26, "begin": 0.14, "pass": 0.14, "unused": 0.04, "all": 0.06},
    "atomic": {"alone": 0.4, "pass": 0.35, "unused": 0.05, "all": 0.2},
}
"""What a main function does: alone: the whole job without aux. finish: the second step on what aux returns. begin: the
first step, on which it calls aux. pass: it passes on what aux returns. unused: it calls aux, and does the whole job on
x. all: the whole job on what aux returns."""

FITTING = {"first": "finish", "second": "begin", "whole": "pass", "same": "all"}
"""Convention of a helper -> of the main function that goes with it."""

_SLIPS = (("):", ")"), ("):", ":"), ("return ", "retrun "), ("(x", "(x x"), ("def ", "define "))


@dataclass(frozen=True)
class Answer:
    """The text of an answer, and the convention that it follows."""

    text: str
    convention: str


def aux(rng: Random, problem: Wanted, convention: str | None = None, flawed: bool = True) -> Answer:
    """A helper of this convention, or of a drawn one."""
    follows = convention or _drawn(rng, AUX[problem.kind])
    steps = {"whole": problem.steps, "first": problem.steps[:1], "second": problem.steps[1:], "same": ()}[follows]
    return Answer(_function(rng, "aux", "", _expression(rng, steps, "x", flawed), flawed), follows)


def main(rng: Random, problem: Wanted, convention: str | None = None, flawed: bool = True) -> Answer:
    """A main function of this convention, or of a drawn one."""
    follows = convention or _drawn(rng, MAIN[problem.kind])
    two = follows not in ("alone", "begin") and (follows == "unused" or rng.random() < TWO_LINES)
    given = "x" if follows in ("alone", "unused", "begin") else "y" if two else "aux(x)"
    steps = {"finish": problem.steps[1:], "begin": problem.steps[:1], "pass": ()}.get(follows, problem.steps)
    value = _expression(rng, steps, given, flawed)
    if follows == "begin":
        value = f"aux({value})"
    return Answer(_function(rng, ENTRY, "y = aux(x)\n    " if two else "", value, flawed), follows)


def coder(rng: Random, problem: Wanted, flawed: bool = True) -> Answer:
    """A function by somebody without a partner."""
    return main(rng, problem, "alone", flawed)


def _drawn(rng: Random, weights: Mapping[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _expression(rng: Random, steps: Sequence[Step], value: str, flawed: bool) -> str:
    """The steps as Python, applied to a name or a call; where ``flawed``, with the flaws of single steps."""
    if len(steps) == 2 and flawed and rng.random() < FORGOTTEN:
        steps = steps[:1]
    for step in steps:
        operation, constant = step.operation, step.constant
        python = operation.python
        if flawed and rng.random() < operation.rate:
            python = operation.mistaken
        if flawed and operation.constants and rng.random() < WRONG_CONSTANT:
            constant = rng.randint(*operation.constants)
        is_single = re.fullmatch(r"\w+(\(.*\))?", value) or "(" in python
        bare = is_single or (flawed and rng.random() < NO_BRACKETS)
        value = python.format(x=value if bare else f"({value})", k=constant)
    return value


def _function(rng: Random, name: str, before: str, value: str, flawed: bool) -> str:
    """A definition of this name; where ``flawed``, with the flaws of a whole function."""
    if flawed and rng.random() < WRONG_NAME:
        name = rng.choice([other for other in ("f", "g", "aux") if other != name])
    returned = "" if flawed and rng.random() < NO_RETURN else "return "
    text = f"def {name}(x):\n    {before}{returned}{value}"
    if flawed and rng.random() < SLIP:
        text = text.replace(*rng.choice([slip for slip in _SLIPS if slip[0] in text]), 1)
    return text
