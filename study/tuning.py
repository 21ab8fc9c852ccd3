"""Word problems to choose settings by: `task=study/tuning.py:Tuning` in the place of `task: arithmetic`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

from coevolve.tasks.numbers import Numbers, asked
from coevolve.tasks.worlds import sums
from coevolve.types import Problem, Prompt, Role, Turn

TRAIN, TEST = 8192, 1024


class Tuning(Numbers):
    """`arithmetic` on problems that it neither trains on nor holds out: those of the split for pre-training.

    Templates and numbers of these problems come together in none of its own, so what is chosen here is not chosen by
    what the study measures. The start model knows such problems, with flawed answers.
    """

    def __init__(self) -> None:
        found = sums.problems("pretrain", TRAIN + TEST, Random("tuning"), distinct=True)
        made = [
            Problem(f"tuning {i}", {"question": problem.question, "gold": Fraction(problem.gold)})
            for i, problem in enumerate(found)
        ]
        super().__init__(train=made[:TRAIN], test=made[TRAIN:], judge="last-number")

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """That of `arithmetic`."""
        return asked(p, role, heard)
