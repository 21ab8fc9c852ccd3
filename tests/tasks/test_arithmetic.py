"""Task arithmetic: what is shown, what is paid, and that the packaged model can read it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from coevolve.models.load import load_tokenizer
from coevolve.pretrain.sums_answers import prompt
from coevolve.recipe.read import load_recipe
from coevolve.tasks import TASKS
from coevolve.tasks.arithmetic import Arithmetic
from coevolve.tasks.worlds.sums import problems
from coevolve.types import Case, Instruction, Problem, Turn

RECIPES = Path(__file__).parents[2] / "recipes"
PEARS = Problem(
    "pears", {"question": "Tom has 7 pears. Ann gives Tom 5 more. How many pears has Tom?", "gold": Fraction(12)}
)


@pytest.fixture(scope="module")
def task() -> Arithmetic:
    made = TASKS["arithmetic"]()
    assert isinstance(made, Arithmetic)
    return made


def test_the_pioneer_hears_the_question_and_the_observer_the_answer_too(
    task: Arithmetic, said: Callable[[Problem, str], Turn]
) -> None:
    bare = "Question: Tom has 7 pears. Ann gives Tom 5 more. How many pears has Tom?\n"
    assert task.prompt(PEARS, "pioneer", ()) == bare + "Answer:"
    assert isinstance(task.prompt(PEARS, "pioneer", ()), Instruction)  # a chat model is spoken to as one
    heard = said(PEARS, " 7+5=13. 13")
    assert task.prompt(PEARS, "observer", (heard,)) == bare + "Reference: 7+5=13. 13\nAnswer:"


def test_prompts_are_those_of_pretraining(task: Arithmetic, said: Callable[[Problem, str], Turn]) -> None:
    (word_problem,) = problems("test", 1, Random("arithmetic/test"))
    assert task.prompt(task.test[0], "pioneer", ()) == prompt(word_problem)
    assert task.prompt(task.test[0], "observer", (said(task.test[0], " 7"),)) == prompt(word_problem, " 7")


def test_an_answer_is_paid_by_its_last_number(task: Arithmetic, case: Callable[..., Case]) -> None:
    both = case(PEARS, " 7-5=2. 2", " 7+5=12. 12")
    assert task.reward([both, case(PEARS, " 12 or 13", "")]) == [[0.0, 1.0], [0.0, 0.0]]
    assert task.parts([both])[0]["solved"] == 1.0
    assert getattr(task, "solo", True)


def test_no_test_problem_is_a_training_problem(task: Arithmetic) -> None:
    train, test = ({p.data["question"] for p in found} for found in (task.train, task.test))
    assert (len(train), len(test)) == (8192, 1024)
    assert not train & test
    assert all(1 <= p.data["gold"] <= 40 for p in (*task.train, *task.test))


def test_the_packaged_tokenizer_knows_the_words(task: Arithmetic) -> None:
    tokenizer = load_tokenizer("coevolve-sums")
    found = [str(task.prompt(p, "pioneer", ())) for p in task.test]
    ids = tokenizer(found)["input_ids"]
    assert tokenizer.batch_decode(ids) == found
    # Whole words and single digits: at most 9 words and numbers a sentence, four sentences at most.
    assert max(map(len, ids)) <= 80


@pytest.mark.parametrize(("name", "samples"), [("ppo-arithmetic-tiny", 1), ("ppo-arithmetic-tiny-2x", 2)])
def test_a_baseline_has_the_settings_of_cory_and_one_agent(name: str, samples: int) -> None:
    cory, ppo = (load_recipe(RECIPES / f"{n}.yaml") for n in ("cory-arithmetic-tiny", name))
    assert (ppo.roles, ppo.policies["ann"]) == ({"pioneer": "ann"}, cory.policies["ann"])
    assert (ppo.sampling, ppo.steps, ppo.batch_size) == (cory.sampling, cory.steps, samples * cory.batch_size)
    assert ppo.algorithm == {**cory.algorithm, "name": "ppo"}
