"""Task ``svamp``: one-step word problems, varied so that key words alone do not give the operation away."""

from __future__ import annotations

from fractions import Fraction

from coevolve.tasks import data
from coevolve.tasks.data import Later
from coevolve.tasks.numbers import Numbers, problems, split, text, value

_HELD_OUT = 0.3


class Svamp(Numbers):
    """SVAMP (Patel et al. 2021) with the prompts and the reward of ``gsm8k``: 685 problems to train, 315 to test.

    The 1,000 problems come from ``svamp`` of the folder that COEVOLVE_DATA names, else from the hub (ChilleD/SVAMP,
    both splits together). The authors made them to test on and gave no split; here a hash of each question decides,
    wherever the rows come from. It is not the split of the hub's copy. judge: as in ``gsm8k``.

    ValueError, when problems are first used: no such data, or a row without body, question or number.
    """

    def __init__(self, *, judge: str = "last-number") -> None:
        parts = Later(lambda: split(problems(_rows(), "svamp", _read), _HELD_OUT))
        super().__init__(train=Later(lambda: parts[0]), test=Later(lambda: parts[1]), judge=judge)


def _rows() -> list[data.Row]:
    return data.rows("svamp", dataset="ChilleD/SVAMP", split="train+test")


def _read(row: data.Row) -> tuple[str, Fraction]:
    body, question = text(row, "body", "Body"), text(row, "question", "Question")
    between = " " if body[-1] in ".,;?!" else ", "  # some bodies stop in the middle of the sentence
    return f"{body}{between}{question}", value(row, "answer", "Answer")
