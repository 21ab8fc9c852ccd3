"""Task ``arithmetic``: generated word problems for ``coevolve-sums``. Everything it needs is in the package."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

from coevolve.pretrain.sums import Split, problems
from coevolve.pretrain.sums_answers import OBSERVER, QUESTION
from coevolve.rewards.numbers import is_right
from coevolve.types import Case, Problem, Role, Turn

_COUNTS: dict[Split, int] = {"train": 4096, "test": 512}


class Arithmetic:
    """CORY's objective task (arXiv 2410.06101, section 4) small enough for a laptop: word problems of one to three steps.

    The first role answers the bare question, a later one has the answer heard last as its reference. A turn earns 1 if
    the last number it says is the right one, else 0. Templates and numbers of a test problem come together neither in
    the training problems nor in what ``coevolve-sums`` was pre-trained on; names and things do.

    Deviations from the paper: generated problems instead of GSM8K, and no worked example before the question, since the
    model was pre-trained on the format.
    """

    def __init__(self) -> None:
        self.train = _problems("train")
        self.test = _problems("test")

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> str:
        """The bare question, or the observer's template around the last thing heard."""
        if not heard:
            return QUESTION.format(question=p.data["question"])
        last = heard[-1]
        said = last if isinstance(last, str) else last.text
        return OBSERVER.format(question=p.data["question"], reference=said.strip())

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """1 for each turn whose last number is the right one, else 0."""
        return [[float(is_right(turn.text, case.problem.data["gold"])) for turn in case.turns] for case in cases]

    def parts(self, cases: Sequence[Case]) -> list[dict[str, float]]:
        """solved: whether the last turn, which has heard the others, is right."""
        return [{"solved": paid[-1]} for paid in self.reward(cases)]


def _problems(split: Split) -> list[Problem]:
    found = problems(split, _COUNTS[split], Random(f"arithmetic/{split}"), distinct=True)
    return [Problem(f"{split} {i}", {"question": p.question, "gold": Fraction(p.gold)}) for i, p in enumerate(found)]
