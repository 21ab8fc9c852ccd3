"""Several rewards as one: the weighted sum, what does not apply, and what is logged."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from coevolve.measure import episode_parts
from coevolve.recipe.components import component
from coevolve.recipe.read import anchored
from coevolve.rewards.several import rewards_of
from coevolve.tasks import TASKS, Rows
from coevolve.types import Case, Episode, Joint, Problem, Turn

ROW = {"prompt": "2 + 2 =", "answer": "4", "kind": "sum"}
SUM, WORD = Problem("sum", ROW), Problem("word", {**ROW, "kind": "word"})


def case(problem: Problem, **texts: str) -> Case:
    return Case(problem, tuple(Turn(role, "llm", problem, 0, 0, (), (), (), t, True) for role, t in texts.items()))


CASES = [case(SUM, solver="4"), case(WORD, solver="four")]


def right(solver, answer):
    return float(solver == answer)


def brief(solver):
    return -float(len(solver))


def of_sums(completions, kind, **columns):
    """As TRL's rewards for several tasks: None for rows of another one."""
    return [float(said == "4") if one == "sum" else None for said, one in zip(completions, kind, strict=True)]


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_weighted_sum() -> None:
    assert rewards_of([right, brief])(CASES) == [[0.0], [-4.0]]
    assert rewards_of([right, brief], [2, 0.5])(CASES) == [[1.5], [-2.0]]


def test_one_reward_is_no_list() -> None:
    rewards = rewards_of(right)
    assert rewards(CASES) == [[1.0], [0.0]]
    assert not rewards.tells
    assert rewards_of([right], [3.0])(CASES) == [[3.0], [0.0]]


def test_what_does_not_apply_is_left_out() -> None:
    assert rewards_of([of_sums, brief], [1.0, 0.5])(CASES) == [[0.5], [-2.0]]
    assert rewards_of([of_sums, brief]).parts()(CASES) == [{"of_sums": 1.0, "brief": -1.0}, {"brief": -4.0}]
    assert message(lambda: rewards_of([of_sums, of_sums])(CASES)) == (
        "no reward applies to problem 'word': of_sums, of_sums-2 gave None; have one of them give a number, or leave "
        "the problem out"
    )


def test_rewards_of_one_name_are_told_apart() -> None:
    second = lambda short: 0.0  # noqa: E731
    second.__name__ = "brief-2"
    assert rewards_of([brief, second, brief]).names == ["brief", "brief-2", "brief-3"]


def test_each_agent_its_own_of_every_reward() -> None:
    def own(short, long):
        return {"long": len(long), "short": 1}

    pair = case(SUM, short="a", long="abc")
    assert rewards_of([own, lambda texts: [10, 20]], [1.0, 0.1])([pair]) == [[2.0, 5.0]]


def test_async_rewards_wait_beside_each_other() -> None:
    met = asyncio.Event()

    async def first(solver):
        await asyncio.wait_for(met.wait(), 10)
        return 1.0

    async def second(completions, **columns):
        met.set()
        return [2.0] * len(completions)

    assert rewards_of([first, second, right])(CASES) == [[4.0], [3.0]]


def test_parts_are_known_from_the_pay_and_asked_anew_of_others() -> None:
    calls = []

    def counted(solver):
        calls.append(solver)
        return float(len(solver))

    rewards = rewards_of([counted, right])
    parts = rewards.parts()
    rewards(CASES)
    assert parts(CASES[1:]) == [{"counted": 4.0, "right": 0.0}]
    assert parts(CASES[:1]) == [{"counted": 1.0, "right": 1.0}]
    assert calls == ["4", "four"]
    assert parts([]) == []
    copies = [dataclasses.replace(case, turns=tuple(map(copy, case.turns))) for case in CASES]
    assert parts(copies) == [{"counted": 1.0, "right": 1.0}, {"counted": 4.0, "right": 0.0}]
    assert calls == ["4", "four"] * 2
    rewards(copies)
    assert len(rewards._known) == 4
    del copies
    assert len(rewards._known) == 2  # another turn may have the id of one that is gone


def test_nothing_is_remembered_where_nobody_asks() -> None:
    rewards = rewards_of([right, brief])
    rewards(CASES)
    assert rewards._known is None


def test_parts_reach_the_metrics_of_a_step() -> None:
    task = Rows(data=[ROW, ROW], test=0.5, prompts={"solver": "{prompt}"}, reward=[right, brief])
    episodes = [Episode(one.problem, 0, list(one.turns), [Joint(one.turns, (0.0,))]) for one in CASES]
    assert episode_parts(episodes, task) == [
        {"parts/right": 1.0, "parts/brief": -1.0},
        {"parts/right": 0.0, "parts/brief": -4.0},
    ]
    assert not hasattr(Rows(data=[ROW, ROW], prompts={"solver": "x"}, reward=right), "parts")


def test_a_recipe_names_them() -> None:
    here = Path(__file__).name
    named = anchored({"reward": [f"{here}:right", f"{here}:brief"]}, Path(__file__).parent)
    assert rewards_of(named["reward"], [1.0, 0.5])(CASES) == [[0.5], [-2.0]]
    more = [*named["reward"], {"name": "classifier", "model": "nowhere", "text": "{answer} {said}"}]
    about = {"data": [ROW, ROW], "test": 0.5, "prompts": {"solver": "{prompt}"}, "reward": more}
    task = component({"name": "rows", **about, "reward_weights": [1, 0.5, 2]}, TASKS, "task")
    assert task.parts and len(task.train) == 1  # nothing is read of the model before it is asked
    with pytest.raises(ValueError, match=r"task.reward_weights are \[1.0\]; want 3"):
        component({"name": "rows", **about, "reward_weights": [1]}, TASKS, "task")


@pytest.mark.parametrize(
    ("spec", "weights", "said"),
    [
        ([], None, "task.reward is empty; want a function, or a list of them"),
        ([right, brief], [1.0], "task.reward_weights are [1.0]; want 2, one per reward"),
        ({"name": "juge"}, None, "task.reward: name is 'juge'; did you mean 'judge'?; known: classifier, judge, or "
         "file.py:name alone"),
        ({"model": "x"}, None, "task.reward: name is None; known: classifier, judge, or file.py:name alone"),
        ({"name": "classifier", "model": "m", "txt": "x"}, None, "task.reward, classifier: unknown key txt; did you "
         "mean 'text'?; known: batch_size, device, label, model, text"),
        ({"name": "classifier", "model": "m", "text": "{a.b}"}, None, "task.reward, classifier: text: a brace around "
         "'a.b'; want the plain name of a role or a column in it"),
    ],
)  # fmt: skip
def test_mistakes(spec: Any, weights: Any, said: str) -> None:
    assert message(lambda: rewards_of(spec, weights)) == said


def test_a_name_in_a_template_that_is_not_there() -> None:
    rewards = rewards_of({"name": "classifier", "model": "m", "text": "{promt}{said}"})
    assert message(lambda: rewards.check(SUM, ["solver"])) == (
        "task.reward, classifier: text, problem 'sum': 'promt' is neither a role nor a column; did you mean 'prompt'?; "
        "there are said, solver, prompt, answer, kind"
    )


def test_the_parts_of_one_step_do_not_forget_another() -> None:
    """Where steps are sampled ahead, the next is paid before this one's parts are asked for, and an evaluation may come
    between."""
    judged = []

    def counted(solver):
        judged.append(solver)
        return 1.0

    rewards = rewards_of([counted, right])
    parts = rewards.parts()
    rewards(CASES[:1])
    rewards(CASES[1:])
    parts(CASES[1:])
    parts(CASES[:1])
    assert judged == ["4", "four"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_waits_for_async_rewards_too() -> None:
    """Its parent's event loop has no thread there, and would never answer."""

    async def one(solver):
        return 2.0

    case = Case(Problem("p"), (Turn("solver", "a", Problem("p"), 0, 0, (), [1], (), "x", True),))
    reward = rewards_of(one)
    assert reward([case]) == [[2.0]]
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if reward([case]) == [[2.0]] else 1)
    assert os.waitpid(child, 0)[1] == 0
