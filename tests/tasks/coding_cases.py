"""Rows of the coding data sets, small ones, and turns that answer them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from coevolve.rewards.sandbox import Sandbox
from coevolve.tasks import data
from coevolve.tasks.humaneval import HumanEval
from coevolve.types import Case, Problem, Turn

SQUARES: dict[str, Any] = {
    "task_id": "HumanEval/900",
    "prompt": 'from typing import List\n\n\ndef squares(n: int) -> List[int]:\n    """The first n squares."""\n',
    "entry_point": "squares",
    "canonical_solution": "    return [i * i for i in range(n)]\n",
    "test": "\n\nMETADATA = {'author': 'us'}\n\n\ndef check(candidate):\n    assert candidate(0) == []\n"
    "    assert candidate(1) == [0]\n    assert candidate(3) == [0, 1, 4]\n    assert candidate(4) == [0, 1, 4, 9]\n",
}

AUX = "def aux(n):\n    return [i * i for i in range(n)]"
MAIN = "def squares(n):\n    if n < 1:\n        return []\n    found = aux(n)\n    return found"
ALONE = "def squares(n):\n    return [i * i for i in range(n)]"
WRONG = "def squares(n):\n    found = aux(n)\n    found.append(1)\n    return found"
"""Passes none of the four tests."""


def serve(monkeypatch: pytest.MonkeyPatch, *rows: Mapping[str, Any]) -> list[tuple[str, str, str, str | None]]:
    """Makes every data set hold these rows; the list says which were asked for."""
    asked: list[tuple[str, str, str, str | None]] = []

    def rows_of(name: str, *, dataset: str, split: str, config: str | None = None) -> list[dict[str, Any]]:
        asked.append((name, dataset, split, config))
        return [dict(row) for row in rows]

    monkeypatch.setattr(data, "rows", rows_of)
    return asked


def squares(monkeypatch: pytest.MonkeyPatch, *, seconds: float = 10.0, **settings: Any) -> HumanEval:
    """The task ``humaneval`` with one problem, the same in both splits. seconds: the limit of each of its tests."""
    serve(monkeypatch, SQUARES)
    task = HumanEval(train=(0, 1), test=(0, 1), **settings)
    task.box = box_of(seconds)
    return task


@cache
def box_of(seconds: float) -> Sandbox:
    """One for all tests with this limit: starting its processes takes longer than most of them."""
    return Sandbox(timeout=seconds)


def turn(role: str, text: str, problem: Problem | None = None) -> Turn:
    return Turn(role, "llm", problem or Problem("p"), 0, 0, (), (), (), text, True)


def said(problem: Problem, **texts: str) -> Case:
    """A case of turns, in the order given."""
    return Case(problem, tuple(turn(role, text, problem) for role, text in texts.items()))
