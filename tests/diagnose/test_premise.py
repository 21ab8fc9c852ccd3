"""Slope and gain by hand, of an ideal verifier, and of start policies."""

import math

import numpy as np
import pytest
import toy
from parlour import Paid, scene

from coevolve import chain
from coevolve.diagnose.premise import estimated, premise, start
from coevolve.recipe.read import load_recipe


def test_by_hand():
    r1_PM = np.array([[0.0, 1.0], [0.0, 1.0]])
    r2_PM = np.array([[0.0, 1.0], [1.0, 1.0]])
    found = estimated(r1_PM, r2_PM, np.full((2, 2), 0.25))
    assert found["slope"] == 0.5  # 1 in the first problem, 0 in the second
    assert found["gain"] == 0.75 - 0.5
    assert (found["alone"], found["heard"], found["empty"]) == (0.5, 0.75, 0.25)
    assert estimated(r1_PM, r2_PM, np.full((2, 2), 0.7))["gain"] == pytest.approx(0.05)


def test_problem_difficulty_is_no_slope():
    easy, hard = np.ones((1, 4)), np.zeros((1, 4))
    r1_PM = np.concatenate([easy, hard, [[0, 1, 0, 1]]])
    r2_PM = np.concatenate([easy, hard, [[1, 1, 0, 0]]])
    assert estimated(r1_PM, r2_PM, r2_PM)["slope"] == 0.0
    assert math.isnan(estimated(easy, easy, easy)["slope"])


def test_an_ideal_verifier():
    rng, p = np.random.default_rng(0), 0.3
    r1_PM = (rng.random((400, 50)) < p).astype(float)
    fresh_PM = (rng.random((400, 50)) < p).astype(float)
    found = estimated(r1_PM, np.maximum(r1_PM, fresh_PM), fresh_PM)
    assert found["slope"] == pytest.approx(1 - p, abs=0.02)
    assert found["gain"] == pytest.approx(p * (1 - p), abs=0.02)
    assert found["slope_low"] < 1 - p < found["slope_high"]


@pytest.fixture
def recipe(tmp_path, micro_model):
    (tmp_path / "toy.yaml").write_text(toy.RECIPE.format(toy=toy.__file__, model=micro_model, out=tmp_path / "run"))
    return tmp_path / "toy.yaml"


def test_of_start_policies(recipe):
    found = premise(load_recipe(recipe), problems=4, members=4)
    assert (found["problems"], found["members"]) == (4, 4)
    assert found == premise(load_recipe(recipe), problems=4, members=4)


def test_answers_are_as_long_as_they_may_become(recipe):
    assert start(load_recipe(recipe), chain(), problems=4, members=2).sampling.max_new_tokens == 5  # of [2, 5]


def test_it_is_the_second_one_whose_reference_is_empty(recipe, monkeypatch):
    class Own(Paid):
        def reward(self, cases):
            return [[float(turn.text) for turn in case.turns] for case in cases]

    def speak(say, words):  # the observer repeats what it hears, and says 2 where that is nothing
        return "5" if say.role == "pioneer" else [*words, "2"][2]

    team = scene(Own(lambda **texts: 0.0, problems=3), speak, cast={"pioneer": "ann", "observer": "bob"})
    monkeypatch.setattr("coevolve.diagnose.premise.start", lambda *_: team)
    found = premise(load_recipe(recipe), problems=3, members=2)
    assert (found["alone"], found["heard"], found["empty"], found["gain"]) == (5.0, 5.0, 2.0, 0.0)


def test_it_takes_two_in_a_chain(recipe):
    with pytest.raises(ValueError, match="two roles in a chain"):
        premise(load_recipe(recipe, ["play=rounds"]))
