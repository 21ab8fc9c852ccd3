"""Tasksets of verifiers: what a role is told, what its answer is paid, and that the example learns."""

from __future__ import annotations

import sys
import warnings
from contextlib import closing
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from coevolve.recipe.build import build
from coevolve.recipe.components import from_file
from coevolve.recipe.read import load_recipe
from coevolve.tasks import Verifiers
from coevolve.tasks.scoring import score_texts
from coevolve.tasks.verifiers import _splits
from coevolve.types import Problem

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    task = Verifiers(taskset=list)
    said = r"^task.taskset needs a package: pip install 'coevolve\[verifiers\]'$"
    with pytest.raises(ValueError, match=said):
        len(task.train)
    with pytest.raises(ValueError, match=said):  # and not that the file cannot be imported
        Verifiers(taskset=f"{EXAMPLES / 'vf_echo.py'}:load_taskset")


def test_held_out_tasks_that_are_trained_on_are_told() -> None:
    alike = [Problem(str(i), {"prompt": "the same", "answer": i}) for i in range(10)]
    with pytest.warns(UserWarning, match="^2 of 2 held-out problems ask what others that are trained on ask"):
        train, _ = _splits(alike, 0.2, 0)
    assert len(train) == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _splits([Problem(str(i), {"prompt": "the same", "system_prompt": str(i)}) for i in range(10)], 0.2, 0)


def test_another_seed_holds_out_other_tasks() -> None:
    made = [Problem(str(i), {"prompt": str(i)}) for i in range(40)]
    (_, zero), (_, one) = (_splits(made, 0.25, seed) for seed in (0, 1))
    assert len(zero) == len(one) == 10
    assert zero != one


def made_of(monkeypatch: pytest.MonkeyPatch, *systems: str | None) -> Verifiers:
    """The task of a taskset with these system prompts, made without the package."""

    def task(number: int, system: str | None) -> Any:
        columns = {} if system is None else {"system_prompt": system}
        return SimpleNamespace(data=SimpleNamespace(prompt=f"Ask {number}.", model_dump=lambda **how: columns))

    tasks = [task(number, system) for number, system in enumerate(systems)]
    monkeypatch.setattr("coevolve.tasks.verifiers._tasks", lambda make: make())
    return Verifiers(taskset=lambda: tasks, test=0.5)


def test_a_teams_problem_has_the_system_prompt_that_all_tasks_share(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Problem("p", {"prompt": "Hi"})
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    task = made_of(monkeypatch, "Be brief.", "Be brief.")
    assert task.asks == ("prompt",)
    assert task.prompt(asked, "solver", ()) == told
    assert task.prompt(Problem("p", {"prompt": "Hi", "system_prompt": "No."}), "solver", ())[0]["content"] == "No."
    bare = made_of(monkeypatch, None, None)
    assert (bare.asks, bare.prompt(asked, "solver", ())) == (("prompt",), "Hi")


def test_where_system_prompts_differ_a_team_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    task = made_of(monkeypatch, "Be brief.", None)
    assert task.asks == ("prompt", "system_prompt")
    told = [task.prompt(p, "solver", ()) for p in sorted((*task.train, *task.test), key=lambda p: p.id)]
    assert told[0][0] == {"role": "system", "content": "Be brief."}
    assert told[1] == "Ask 1."  # a task without one stays without


@pytest.fixture(scope="module")
def vf() -> Any:
    return pytest.importorskip("verifiers.v1", reason="verifiers 0.4 wants openai below 3, so `dev` is without it")


def test_tasks_are_problems_and_their_rewards_pay(vf: Any) -> None:
    task = Verifiers(taskset=from_file(f"{EXAMPLES / 'vf_echo.py'}:taskset", (), "x"))
    assert (len(task.train), len(task.test)) == (18, 2)
    problem = task.train[0]
    assert task.prompt(problem, "solver", ()) == problem.data["wanted"]
    found = score_texts(task, problem, {"ann": problem.data["wanted"], "bob": "none"})
    assert found.rewards == {"ann": 1.0, "bob": 0.0}
    assert found.parts == {"task_said": 0.5, "task_length": 2.5}


def test_messages_and_system_prompts(vf: Any) -> None:
    talk = [{"role": "user", "content": "Hi"}]
    asked = vf.TaskData(prompt=[vf.UserMessage(content="Hi")], system_prompt="Be brief.")
    task = Verifiers(taskset=lambda: [vf.Task(asked), vf.Task(vf.TaskData(prompt="Hi", system_prompt="No."))], test=0.5)
    told = [task.prompt(p, "solver", ()) for p in sorted((*task.train, *task.test), key=lambda p: p.id)]
    assert told == [[{"role": "system", "content": words}, *talk] for words in ("Be brief.", "No.")]


def test_what_is_no_taskset(vf: Any) -> None:
    def said(taskset: Any) -> str:
        with pytest.raises(ValueError) as error:
            len(Verifiers(taskset=taskset).train)
        return str(error.value)

    assert said(lambda: 3) == "task.taskset: 3 is no taskset; want a function that makes one"
    assert said(lambda: [vf.Task(vf.TaskData())] * 2).startswith("task.taskset, task 1: Task has no prompt")


def test_the_example_learns(vf: Any) -> None:
    with closing(build(load_recipe(EXAMPLES / "vf_echo.yaml", ["workers=false", "threads=1"]))) as trainer:
        paid = [trainer.step(i)["reward"] for i in range(30)]
    assert paid[0] < 0.5
    assert fmean(paid[-3:]) > 0.8
