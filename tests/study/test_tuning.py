"""Settings are chosen on problems that the study neither trains on nor measures by."""

from pathlib import Path

import pytest

from coevolve.recipe.build import check, parts
from coevolve.recipe.read import load_recipe
from coevolve.tasks.arithmetic import Arithmetic
from coevolve.tasks.sentiment import Sentiment

pytestmark = pytest.mark.slow

STUDY = Path(__file__).parents[2] / "study"


@pytest.mark.parametrize("name", ["sums", "sums-ppo"])
def test_its_problems_are_not_those_of_the_study(name):
    recipe = load_recipe(STUDY / f"{name}.yaml", [f"task={STUDY / 'tuning.py'}:Tuning"])
    check(recipe)
    tuning, study = parts(recipe).task(), Arithmetic()
    ours = {problem.data["question"] for problem in (*tuning.train, *tuning.test)}
    assert len(ours) == len(tuning.train) + len(tuning.test) == 9216
    assert not ours & {problem.data["question"] for problem in (*study.train, *study.test)}
    one, theirs = tuning.test[0], study.test[0]
    shown, as_there = (
        str(task.prompt(problem, "pioneer", [])).replace(problem.data["question"], "Q")
        for task, problem in ((tuning, one), (study, theirs))
    )
    assert shown == as_there


def test_its_openings_are_not_those_of_the_study():
    recipe = load_recipe(STUDY.parent / "recipes" / "cory-sentiment.yaml", [f"task={STUDY / 'tuning.py'}:Openings"])
    check(recipe)
    tuning, study = parts(recipe).task(), Sentiment()
    ours = {problem.id for problem in (*tuning.train, *tuning.test)}
    assert len(ours) == len(tuning.train) + len(tuning.test)
    assert not ours & {problem.id for problem in (*study.train, *study.test)}
    assert len(tuning.train) >= len(study.train)
    assert tuning.prompt(tuning.train[0], "pioneer", []) == tuning.train[0].data["query"]
