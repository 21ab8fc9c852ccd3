"""Task ``arithmetic``: generated word problems for ``coevolve-sums``. Everything it needs is in the package."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from coevolve.tasks.data import Later
from coevolve.tasks.numbers import Numbers
from coevolve.tasks.worlds import sums
from coevolve.tasks.worlds.split import Split
from coevolve.types import Problem

_COUNTS: dict[Split, int] = {"train": 8192, "test": 1024}


class Arithmetic(Numbers):
    """CORY's task with right and wrong answers (arXiv 2410.06101, section 4), small enough for a laptop.

    Word problems of one to three steps; a turn earns 1 if the last number of its text is the right one, else 0. No test
    problem shares its combination of templates and numbers with a training problem or with the pre-training text of
    ``coevolve-sums``; names and things may repeat.

    Deviations from the paper: generated problems instead of GSM8K, and no worked example before the question, since
    the model was pre-trained on the format.
    """

    example = ""

    def __init__(self) -> None:
        super().__init__(
            train=Later(lambda: _problems("train")), test=Later(lambda: _problems("test")), judge="last-number"
        )


def _problems(split: Split) -> list[Problem]:
    found = sums.problems(split, _COUNTS[split], Random(f"arithmetic/{split}"), distinct=True)
    return [
        Problem(f"{split} {i}", {"question": problem.question, "gold": Fraction(problem.gold)})
        for i, problem in enumerate(found)
    ]
