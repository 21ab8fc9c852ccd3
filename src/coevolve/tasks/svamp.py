"""Task ``svamp``: one-step word problems, varied so that key words alone do not give the operation away."""

from __future__ import annotations

from typing import Any

from coevolve.tasks import data
from coevolve.tasks.data import Later
from coevolve.tasks.numbers import Numbers, split, value

_HELD_OUT = 0.3


class Svamp(Numbers):
    """SVAMP (Patel et al. 2021) with the prompts and the reward of ``gsm8k``: 699 problems to train, 298 to test.

    The 1,000 problems come from ``svamp`` of the folder that COEVOLVE_DATA names, else from the hub (ChilleD/SVAMP,
    both splits together). The authors made a test set and gave no split; here a hash of each problem's story, without
    its numbers and its question, decides, wherever the rows come from. Many stories are variations of a few: 180 of the
    298 share more than four fifths of their words with a training problem. It is not the split of the hub's copy.
    judge: as in ``gsm8k``.

    Raises ValueError, when problems are first used, for missing data and for a row without body, question or number.
    """

    def __init__(self, *, judge: str = "last-number") -> None:
        parts = Later(lambda: split(data.problems(_rows(), "svamp", _read), _HELD_OUT))
        super().__init__(train=Later(lambda: parts[0]), test=Later(lambda: parts[1]), judge=judge)


def _rows() -> list[data.Row]:
    return data.rows("svamp", dataset="ChilleD/SVAMP", split="train+test")


def _read(row: data.Row) -> dict[str, Any]:
    body = data.text(row, "body", "Body").strip()
    question = data.text(row, "question", "Question").strip()
    between = " " if body[-1] in ".,;?!" else ", "  # some bodies stop in the middle of the sentence
    return {"question": f"{body}{between}{question}", "gold": value(row, "answer", "Answer"), "story": body}
