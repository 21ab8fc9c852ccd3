"""Task ``gsm8k``: grade-school word problems with worked solutions."""

from __future__ import annotations

from typing import Any

from coevolve.rewards.numbers import gold_of
from coevolve.tasks import data
from coevolve.tasks.data import Later
from coevolve.tasks.numbers import Numbers
from coevolve.types import Problem


class Gsm8k(Numbers):
    """CORY's GSM8K task (arXiv 2410.06101, section 4) on Cobbe et al. 2021: 7,473 problems to train, 1,319 to test.

    They come from ``gsm8k_train`` and ``gsm8k_test`` of the folder that COEVOLVE_DATA names, else from the hub
    (openai/gsm8k, main). judge: "last-number", the paper's rule, or "math-verify".

    Deviations from the paper:
    1. The worked example is ours; the paper does not print its own.
    2. The observer is shown the example too; the paper does not say whether it is.
    3. "a/b" is read as one number, a fraction; the paper says no more than that a regular expression finds the last
       number, which may be b. An answer that ends in "12/4" is right where the gold number is 3, not where it is 4.

    Raises ValueError, when problems are first used, for missing data and for a row without question or without an
    answer behind ``####``.
    """

    def __init__(self, *, judge: str = "last-number") -> None:
        super().__init__(train=Later(lambda: _problems("train")), test=Later(lambda: _problems("test")), judge=judge)


def _problems(split: str) -> list[Problem]:
    rows = data.rows(f"gsm8k_{split}", dataset="openai/gsm8k", config="main", split=split)
    return data.problems(rows, f"gsm8k, split {split!r}", _read)


def _read(row: data.Row) -> dict[str, Any]:
    return {"question": data.text(row, "question").strip(), "gold": gold_of(data.text(row, "answer"))}
