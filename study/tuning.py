"""Problems to choose settings by: `task=study/tuning.py:Tuning` in the place of `task: arithmetic`, and `:Openings` in
that of `task: sentiment`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

from coevolve.rewards.sentiment import lexicon
from coevolve.tasks.continuation import Continuation, Split
from coevolve.tasks.numbers import Numbers, asked
from coevolve.tasks.worlds import opinions, sums
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


class Openings(Continuation):
    """`sentiment` on openings that it neither trains on nor holds out: those that the start model was pre-trained on,
    in opinions of all grades."""

    def __init__(self) -> None:
        super().__init__(texts=_openings, tokenizer="coevolve-tiny", query_tokens=(2, 8), seed=0, score=lexicon)


def _openings(split: Split) -> dict[str, str]:
    known = opinions.openings("pretrain")
    Random("tuning").shuffle(known)
    test = len(known) // 4
    return {opening: opening for opening in (known[:test] if split == "test" else known[test:])}
