"""Training documents of `coevolve-coop`: prompts with flawed answers, with and without the other role's code."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from coevolve.pretrain.coop_answers import AUX, FITTING, Answer, aux, coder, main
from coevolve.pretrain.recipe import END
from coevolve.tasks.worlds.coop import ENTRY, Kind, Wanted, wanted
from coevolve.tasks.worlds.coop_prompts import AGAIN, BESIDE, FIRST, NOTES
from coevolve.tasks.worlds.split import Split

DECOMPOSABLE = 0.75  # of the problems
ALONE = 0.2  # share of the prompts without another role's code that are of the role coder
READS = 0.65  # probability that an answer to the other role's code takes the fitting convention; else one is drawn

WRITE: dict[str, Callable[[Random, Wanted], Answer]] = {"aux": aux, "main": main, "coder": coder}
"""Role -> the function that draws its answer."""

_AGAIN = f"{NOTES['again']}\n\n"
_FITS: dict[str, str] = {main: aux for aux, main in FITTING.items()}


def answers(rng: Random, count: int, split: Split) -> list[str]:
    """Return ``count`` documents, each of three independent first turns on the same problem.

    The repeated problem text teaches a model to copy from it; with one turn per document, that took many times as long.
    """
    return [END.join(_first_turn(rng, problem) for _ in range(3)) for problem in drawn(rng, count, split)]


def heard(rng: Random, count: int, split: Split) -> list[str]:
    """Return ``count`` turns of a split whose prompt shows the other role's code.

    Half of them are main functions for a given helper, as in a pipeline; the others are second turns of either role,
    after its own first turn, as in a discussion.
    """
    return [(_pipeline if rng.random() < 0.5 else _discussion)(rng, p) for p in drawn(rng, count, split)]


def drawn(rng: Random, count: int, split: Split) -> list[Wanted]:
    """Draw ``count`` problems of a split, of both kinds."""
    kinds: list[Kind] = ["decomposable" if rng.random() < DECOMPOSABLE else "atomic" for _ in range(count)]
    made = {kind: iter(wanted(split, kind, kinds.count(kind), rng)) for kind in sorted(set(kinds))}
    return [next(made[kind]) for kind in kinds]


def first(problem: Wanted, role: str, told: str = "") -> str:
    """Return the prompt of a first turn."""
    return FIRST[role].format(told=told, text=problem.text, entry=ENTRY)


def again(answer: Answer, told: str) -> str:
    """Return an own turn, its end of sequence, and the prompt of the next turn."""
    return answer.text + END + AGAIN.format(told=told)


def _first_turn(rng: Random, problem: Wanted) -> str:
    role = "coder" if rng.random() < ALONE else rng.choice(("aux", "main"))
    return first(problem, role) + WRITE[role](rng, problem).text


def _pipeline(rng: Random, problem: Wanted) -> str:
    helper = aux(rng, problem)
    return first(problem, "main", BESIDE["main"].format(code=helper.text)) + _to_helper(rng, problem, helper).text


def _discussion(rng: Random, problem: Wanted) -> str:
    helper, caller = aux(rng, problem), main(rng, problem)
    if rng.random() < 0.5:
        told = BESIDE["main"].format(code=helper.text)
        return first(problem, "main") + again(caller, told + _AGAIN) + _to_helper(rng, problem, helper).text
    told = BESIDE["aux"].format(code=caller.text)
    return first(problem, "aux") + again(helper, told + _AGAIN) + _to_caller(rng, problem, caller).text


def _to_helper(rng: Random, problem: Wanted, helper: Answer) -> Answer:
    """Draw a main function that answers this helper."""
    return main(rng, problem, FITTING[helper.convention] if rng.random() < READS else None)


def _to_caller(rng: Random, problem: Wanted, caller: Answer) -> Answer:
    """Draw a helper that answers this main function."""
    fitting = _FITS.get(caller.convention)
    return aux(rng, problem, fitting if fitting in AUX[problem.kind] and rng.random() < READS else None)
