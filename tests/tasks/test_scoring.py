"""Texts scored through a task without turns of a model; whose rules they are scored by."""

from __future__ import annotations

import re
from typing import Any

import pytest
from coding_cases import AUX, MAIN, SQUARES, serve, squares

from coevolve import Problem, score_texts
from coevolve.tasks import Arithmetic, Arxiv, CoopHumanEval, Game, HumanEval, Mbpp, Rows, Tldr, WritingMini
from coevolve.tasks.coding import Coding

BRIEF = "A red dog ran over my old fence"  # see tests/rewards/test_writing.py
LONG = "However, that big red dog also ran across a muddy garden and it barked"
WORTH = 0.5 + 1 + 0.225 / 0.7 + 0.6 + 0.22


def test_writing() -> None:
    found = score_texts(Tldr(), Problem("p"), {"short": BRIEF, "detailed": LONG})
    assert found.rewards == pytest.approx({"short": WORTH, "detailed": WORTH})
    assert (found.parts["levels_passed"], found.parts["words_2"]) == (4.0, 14.0)
    stopped = score_texts(Tldr(), Problem("p"), {"detailed": BRIEF, "short": LONG})  # the order does not matter
    assert stopped.rewards == {"detailed": 0.5, "short": 0.5}
    assert stopped.parts["levels_passed"] == 1.0


def test_coding(monkeypatch: pytest.MonkeyPatch) -> None:
    task = squares(monkeypatch)
    found = score_texts(task, task.train[0], {"aux": AUX, "main": MAIN})
    assert found.rewards == {"aux": 4.0, "main": 4.0}
    assert (found.parts["levels_passed"], found.parts["solved"]) == (3.0, 1.0)
    found = score_texts(task, task.train[0], {"coder": "def squares(n):\n    print(n)"})
    assert (found.rewards, found.parts["levels_passed"]) == ({"coder": 0.0}, 0.0)


def test_each_its_own() -> None:
    task = Arithmetic()
    problem = task.train[0]
    right = f"It is {problem.data['gold']}."
    found = score_texts(task, problem, {"pioneer": "It is -1.", "observer": right})
    assert found.rewards == {"pioneer": 0.0, "observer": 1.0}
    assert found.parts["solved_any"] == 1.0


def test_a_task_without_parts(tmp_path: Any) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"animal": "cat"}\n{"animal": "dog"}\n')
    task = Rows(data=str(file), prompts={"one": "{animal}"}, reward=lambda one, animal: float(animal in one), test=0.5)
    assert score_texts(task, task.train[0], {"one": "cat dog"}).rewards == {"one": 1.0}
    assert score_texts(task, task.train[0], {"one": ""}).parts == {}


def test_other_roles_are_the_tasks_own_error() -> None:
    with pytest.raises(ValueError, match="want one turn of each role, short, detailed"):
        score_texts(WritingMini(), Problem("p"), {"short": "x"})
    with pytest.raises(ValueError, match=re.escape("were given none")):
        score_texts(WritingMini(), Problem("p"), {})


def test_a_game() -> None:
    trust = Game(game="trust")
    assert score_texts(trust, trust.train[0], {"one": "C", "two": "d"}).rewards == {
        role: float(paid) for role, paid in zip(("one", "two"), trust.pays[""]["CD"], strict=True)
    }


# --- whose rules -----------------------------------------------------------------------------------------------------


def _with_tests(monkeypatch: pytest.MonkeyPatch, tests: str, scoring: Any) -> HumanEval:
    task = squares(monkeypatch, scoring=scoring)
    serve(monkeypatch, SQUARES | {"test": f"def check(candidate):\n{tests}"})
    made = HumanEval(train=(0, 1), test=(0, 1), scoring=scoring)
    made.box = task.box
    return made


@pytest.mark.parametrize(("scoring", "share"), [("ours", 3 / 4), ("paper", 2 / 3)])
def test_equal_asserts(monkeypatch: pytest.MonkeyPatch, scoring: str, share: float) -> None:
    tests = "".join(f"    assert candidate({n}) == {list(range(n))}\n" for n in (0, 1, 1, 3))  # 3 is wrong
    task = _with_tests(monkeypatch, tests, scoring)
    found = score_texts(task, task.train[0], {"coder": "def squares(n):\n    return [i * i for i in range(n)]"})
    assert found.parts["tests"] == pytest.approx(share)
    assert found.rewards["coder"] == pytest.approx(1.1 + share)


@pytest.mark.parametrize(("scoring", "paid"), [("ours", 1.1), ("paper", 2.1)])
def test_math_without_an_import(monkeypatch: pytest.MonkeyPatch, scoring: str, paid: float) -> None:
    task = _with_tests(monkeypatch, "    assert candidate(2) == [0, 1]\n", scoring)
    code = "def squares(n):\n    return [math.floor(i) for i in range(n)]"
    assert score_texts(task, task.train[0], {"coder": code}).rewards["coder"] == pytest.approx(paid)


@pytest.mark.parametrize("task", [Tldr, Arxiv, WritingMini, HumanEval, CoopHumanEval, Mbpp])
def test_other_rules_are_refused(task: Any) -> None:
    with pytest.raises(ValueError) as error:
        task(scoring="our")
    assert str(error.value) == "task: scoring is 'our'; want one of ours, paper; did you mean 'ours'?"


@pytest.mark.parametrize("task", [Tldr, Arxiv, HumanEval, CoopHumanEval, Mbpp])
def test_the_default_is_ours(task: Any) -> None:
    ours, paper = task(), task(scoring="paper")
    if isinstance(ours, Coding):
        assert (ours.scoring, paper.scoring) == ("ours", "paper")
    else:
        assert (ours.counted("a     b"), paper.counted("a     b")) == ("a  b", "a     b")
