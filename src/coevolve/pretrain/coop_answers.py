"""Training texts of `coevolve-coop`: helper and main functions with known flaws, in competing conventions.

The two functions of a pair follow conventions drawn independently, so that most pairs do not fit. Flaws are drawn
independently at the rates below, and a wrong operation at the rate of each operation; for three of the ten
operations the wrong one is the likelier one, so that the most likely answer is not a good one either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from coevolve.tasks.worlds.coop import ENTRY, Kind, Step, Wanted

WRONG_CONSTANT = 0.1  # of a step
FORGOTTEN = 0.15  # of a function with two steps: the second one is missing
NO_BRACKETS = 0.3  # of two steps in one expression that needs brackets
NO_RETURN = 0.12  # of a function
SLIP = 0.15  # of a function: a syntax error
WRONG_NAME = 0.06  # of a function
TWO_LINES = 0.3  # of main functions that call aux: "y = aux(x)", then "return y+3"

AUX: dict[Kind, Mapping[str, float]] = {
    "decomposable": {"whole": 0.38, "first": 0.32, "second": 0.22, "same": 0.08},
    "atomic": {"whole": 0.7, "same": 0.3},
}
"""Convention of a helper -> its probability: it does the whole job, its first step, its second, or nothing
("return x")."""

MAIN: dict[Kind, Mapping[str, float]] = {
    "decomposable": {"alone": 0.36, "finish": 0.26, "begin": 0.14, "pass": 0.14, "unused": 0.04, "all": 0.06},
    "atomic": {"alone": 0.4, "pass": 0.35, "unused": 0.05, "all": 0.2},
}
"""Convention of a main function -> its probability. alone: the whole job without aux. finish: the second step on the
result of aux. begin: the first step, on whose result it calls aux. pass: it returns the result of aux. unused: it calls
aux, and does the whole job on x. all: the whole job on the result of aux."""

FITTING = {"first": "finish", "second": "begin", "whole": "pass", "same": "all"}
"""Convention of a helper -> convention of the main function that fits it."""

_SLIPS = (("):", ")"), ("):", ":"), ("return ", "retrun "), ("(x", "(x x"), ("def ", "define "))


@dataclass(frozen=True)
class Answer:
    """An answer: its text, and the convention that it follows."""

    text: str
    convention: str


def aux(rng: Random, problem: Wanted, convention: str | None = None, flawed: bool = True) -> Answer:
    """Draw a helper of this convention, or of a drawn one."""
    follows = convention or _drawn(rng, AUX[problem.kind])
    steps = {"whole": problem.steps, "first": problem.steps[:1], "second": problem.steps[1:], "same": ()}[follows]
    return Answer(_function(rng, "aux", "", _expression(rng, steps, "x", flawed), flawed), follows)


def main(rng: Random, problem: Wanted, convention: str | None = None, flawed: bool = True) -> Answer:
    """Draw a main function of this convention, or of a drawn one."""
    follows = convention or _drawn(rng, MAIN[problem.kind])
    two = follows not in ("alone", "begin") and (follows == "unused" or rng.random() < TWO_LINES)
    given = "x" if follows in ("alone", "unused", "begin") else "y" if two else "aux(x)"
    steps = {"finish": problem.steps[1:], "begin": problem.steps[:1], "pass": ()}.get(follows, problem.steps)
    value = _expression(rng, steps, given, flawed)
    if follows == "begin":
        value = f"aux({value})"
    return Answer(_function(rng, ENTRY, "y = aux(x)\n    " if two else "", value, flawed), follows)


def coder(rng: Random, problem: Wanted, flawed: bool = True) -> Answer:
    """Draw a main function that does the whole job without aux."""
    return main(rng, problem, "alone", flawed)


def _drawn(rng: Random, weights: Mapping[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _expression(rng: Random, steps: Sequence[Step], value: str, flawed: bool) -> str:
    """Return the steps as Python, applied to a name or a call; if ``flawed``, with the flaws of single steps."""
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
    """Return a function definition with this name; if ``flawed``, with the flaws of a whole function."""
    if flawed and rng.random() < WRONG_NAME:
        name = rng.choice([other for other in ("f", "g", "aux") if other != name])
    returned = "" if flawed and rng.random() < NO_RETURN else "return "
    text = f"def {name}(x):\n    {before}{returned}{value}"
    if flawed and rng.random() < SLIP:
        text = text.replace(*rng.choice([slip for slip in _SLIPS if slip[0] in text]), 1)
    return text
