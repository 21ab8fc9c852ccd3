"""Task ``mawps``: short word problems from several older collections."""

from __future__ import annotations

from typing import Any

from coevolve.tasks import data
from coevolve.tasks.data import Later
from coevolve.tasks.numbers import Numbers, split, value
from coevolve.types import Problem

_HELD_OUT = 0.3
_FINEST = 1000  # the largest denominator of an answer that is written exactly; the rest are thirds and sixths, rounded


class Mawps(Numbers):
    """MAWPS (Koncel-Kedziorski et al. 2016) with the prompts and the reward of ``gsm8k``.

    The problems come from ``mawps`` of the folder that COEVOLVE_DATA names (AddSub, MultiArith, SingleEq and SingleOp),
    else from the hub (MU-NLPC/Calc-mawps, all splits together, which is another selection). There is no common split;
    here a hash of each question without its numbers decides. Left out are questions that repeat and those whose answer
    is a rounded decimal such as 0.6666666667, which an exact comparison would never find right: 1,798 of the 2,065 rows
    of the folder remain. Of these, 1,254 are to train and 494 to test (``split`` drops 50); 177 of them share more than
    four fifths of their words with a training problem. judge: as in ``gsm8k``.

    Raises ValueError, when problems are first used, for missing data and for a row without question or number.
    """

    def __init__(self, *, judge: str = "last-number") -> None:
        parts = Later(lambda: split(_exact(), _HELD_OUT))
        super().__init__(train=Later(lambda: parts[0]), test=Later(lambda: parts[1]), judge=judge)


def _exact() -> list[Problem]:
    rows = data.rows("mawps", dataset="MU-NLPC/Calc-mawps", split="train+validation+test")
    return [p for p in data.problems(rows, "mawps", _read) if p.data["gold"].denominator <= _FINEST]


def _read(row: data.Row) -> dict[str, Any]:
    return {"question": data.text(row, "question").strip(), "gold": value(row, "answer", "result_float")}
