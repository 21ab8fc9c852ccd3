"""Task checkable: what is shown, and what is paid."""

from __future__ import annotations

import pytest

from coevolve.tasks import TASKS
from coevolve.tasks.checkable import Checkable
from coevolve.types import Case, Problem, Turn

PROBLEM = Problem("p", {"question": "Which of 3, 8, 5 add up to 13?", "right": ["8, 5"]})


@pytest.fixture(scope="module")
def task() -> Checkable:
    made = TASKS["checkable"]()
    assert isinstance(made, Checkable)
    return made


def turn(text: str, role: str = "pioneer") -> Turn:
    return Turn(role, "llm", PROBLEM, 0, 0, (), (), (), text, True)


def test_an_observer_sees_the_reference(task: Checkable) -> None:
    assert task.prompt(PROBLEM, "pioneer", ()) == "Question: Which of 3, 8, 5 add up to 13?\nAnswer:"
    assert task.prompt(PROBLEM, "observer", (turn(" 3, 8"),)) == (
        "Question: Which of 3, 8, 5 add up to 13?\nReference: 3, 8\nAnswer:"
    )


def test_the_last_sentence_is_paid(task: Checkable) -> None:
    said = (" 8, 5", " 3+8=11. 8, 5", " 3+8=11. 3, 8", " 5,8", "", " 8, 5 or 3, 8", " 8, 5, 5", " 8 5")
    cases = [Case(PROBLEM, (turn(text),)) for text in said]
    assert task.reward(cases) == [[1.0], [1.0], [0.0], [1.0], [0.0], [0.0], [0.0], [0.0]]
    both = Case(PROBLEM, (turn(" 3, 8"), turn(" 3+8=11. 8, 5", "observer")))
    assert task.reward([both]) == [[0.0, 1.0]]
    assert task.parts([both, cases[0]]) == [{"solved": 1.0, "solved_any": 1.0, "agree": 0.0}, {"solved": 1.0}]
    alike = Case(PROBLEM, (turn(" 5, 8"), turn(" 3+8=11. 8, 5", "observer")))
    assert task.parts([alike]) == [{"solved": 1.0, "solved_any": 1.0, "agree": 1.0}]
    silent = Case(PROBLEM, (turn(""), turn("", "observer")))
    assert task.parts([silent]) == [{"solved": 0.0, "solved_any": 0.0, "agree": 0.0}]


def test_problems_are_plain_data_and_no_two_are_the_same(task: Checkable) -> None:
    assert (len(task.train), len(task.test)) == (4096, 1024)
    questions = {p.data["question"] for p in (*task.train, *task.test)}
    assert len(questions) == 4096 + 1024
    assert all(p.data["right"] for p in task.test)
