"""Task ``checkable``: puzzles that are easy to check and hard to solve. Everything it needs is in the package."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from coevolve.tasks.data import Later
from coevolve.tasks.numbers import asked
from coevolve.tasks.worlds import checks
from coevolve.tasks.worlds.split import Split
from coevolve.types import Case, Problem, Prompt, Role, Turn

_COUNTS: dict[Split, int] = {"train": 4096, "test": 1024}


class Checkable:
    """Puzzles whose answers are easy to check, as CORY's observer needs of a reference (arXiv 2410.06101, section 3).

    Three families: find the number whose square has a given remainder, the numbers with a given sum, or the variables
    that make clauses true. A turn earns 1 if its last sentence is a right answer, in any order, else 0; what stands
    before it, such as a check of the reference, is not judged. All orders of a question belong to one split; within a
    split a question may occur in several orders. Prompts are those of ``arithmetic``.
    """

    asks = ("question",)

    def __init__(self) -> None:
        self.train: Sequence[Problem] = Later(lambda: _problems("train"))
        self.test: Sequence[Problem] = Later(lambda: _problems("test"))

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return the question with the last answer of each other role that was heard as a reference; or the role's own
        last turn and what is new."""
        return asked(p, role, heard)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return 1.0 or 0.0 for each turn, by its own answer."""
        return [_right(case) for case in cases]

    def parts(self, cases: Sequence[Case]) -> list[dict[str, float]]:
        """Return for each case ``solved``: whether the last turn, which is the team's answer, is right (0 or 1); for
        several turns also ``solved_any``, whether one of them is right, and ``agree``, whether all answers are
        equal and none is empty.
        """
        return [_parts(case) for case in cases]


def _right(case: Case) -> list[float]:
    right = case.problem.data["right"]
    return [float(any(checks.same(checks.answer(turn.text), one) for one in right)) for turn in case.turns]


def _parts(case: Case) -> dict[str, float]:
    right = _right(case)
    found = {"solved": right[-1]}
    if len(right) > 1:
        first, *others = (checks.answer(turn.text) for turn in case.turns)
        agree = bool(first) and all(checks.same(first, other) for other in others)
        found |= {"solved_any": max(right), "agree": float(agree)}
    return found


def _problems(split: Split) -> list[Problem]:
    found = checks.puzzles(split, _COUNTS[split], Random(f"checkable/{split}"), distinct=True)
    return [
        Problem(f"{split} {i}", {"question": puzzle.question, "right": sorted(puzzle.right)})
        for i, puzzle in enumerate(found)
    ]
