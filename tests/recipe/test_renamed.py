"""Recipes in words of before: translated where a run recorded them, an error where somebody writes them."""

import json

import pytest
import yaml

from coevolve.recipe import renamed
from coevolve.recipe.schema import load_recipe, parts
from coevolve.runs.folder import RunDir
from coevolve.runs.trained import recipe_of

OLD = """
task: {name: game, game: chicken}
play: {name: rounds}
roles: {first: ann, second: bob}
cast: {name: fixed}
policies:
  ann: {model: coevolve-coin, weights: full}
  bob: {model: coevolve-coin, weights: full}
algorithm: {name: grpo, credit: own, gamma: 0.5, weights: token, beta: 0.0}
sampling: {max_new_tokens: 1}
output_dir: runs/old
seed: 0
steps: 2
"""
"""As a run wrote it into its recipe.yaml."""

NEW = {
    "name": "grpo",
    "credit": {"name": "own_return", "gamma": 0.5},
    "loss_aggregation": "token",
    "beta": 0.0,
}


def test_a_recorded_recipe_loads(tmp_path):
    (tmp_path / "recipe.yaml").write_text(OLD)
    recipe = recipe_of(RunDir(tmp_path))
    assert recipe.algorithm == NEW
    assert recipe.policies["ann"].weights == "full"  # another word, which stays
    assert parts(recipe).algorithm().settings["loss_aggregation"] == "token"


@pytest.mark.parametrize(
    ("algorithm", "want"),
    [
        ({"name": "ppo", "credit": "own"}, {"name": "ppo", "credit": "own_reward"}),
        ({"name": "cory", "weights": "turn"}, {"name": "cory", "loss_aggregation": "turn"}),
        ({"name": "ppo", "gamma": 0.9}, {"name": "ppo", "gamma": 0.9}),  # of its tokens
        ({"name": "magrpo", "credit": "team"}, {"name": "magrpo", "credit": "team_return"}),
        ({"name": "magrpo", "gamma": 0.0}, {"name": "magrpo", "credit": {"name": "team_return", "gamma": 0.0}}),
        ({"name": "magrpo", "gamma": 1.0}, {"name": "magrpo", "credit": "team_return"}),
        ({"name": "a.py:mine", "weights": 2, "credit": "own"}, {"name": "a.py:mine", "weights": 2, "credit": "own"}),
        # Python's, without a name
        ({"baseline": "mean", "credit": "team", "gamma": 1.0}, {"baseline": "mean", "credit": "team_return"}),
        ({"eta": 0.3, "credit": "own", "gamma": 1.0}, {"eta": 0.3, "credit": "own_reward", "gamma": 1.0}),
    ],
)
def test_every_word(algorithm, want):
    once = renamed.recipe({"algorithm": algorithm, "steps": 1})
    assert once == {"algorithm": want, "steps": 1}
    assert renamed.recipe(once) == once


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.weights=turn", "algorithm: write {loss_aggregation: turn} in place of weights"),
        ("algorithm.credit=own", "algorithm: write {credit: own_return} in place of credit"),
        ("algorithm.gamma=0.5", "algorithm: write {credit: {name: team_return, gamma: 0.5}} in place of gamma"),
    ],
)
def test_in_a_recipe_it_is_one_line(override, message, tmp_path):
    file = tmp_path / "mine.yaml"
    tree = yaml.safe_load(OLD)
    file.write_text(yaml.safe_dump({**tree, "algorithm": "magrpo"}))
    with pytest.raises(ValueError) as error:
        load_recipe(file, [override])
    assert str(error.value) == f"{file}: {message}"


def test_a_checkpoint_of_before():
    policies = {
        "ann": {
            "kl": {"coef": 0.25, "target": 6.0, "horizon": 10000},
            "moments": {"count": 8, "mean": 1.5, "squares": 2.0},
        },
        "bob": {"kl": {"coef": 0.3}, "moments": {"count": 0, "mean": 0.0, "squares": 0.0}},
    }
    saved = {"step": 4, "policies": policies, "identity": yaml.safe_load(OLD)}
    found = renamed.trainer_state(json.loads(json.dumps(saved)))
    assert found["policies"] == ["ann", "bob"]
    assert found["state"] == {"kl": {"ann": 0.25}, "moments": {"ann": {"count": 8, "mean": 1.5, "squares": 2.0}}}
    assert found["identity"]["algorithm"] == NEW
    assert renamed.trainer_state(found) == found
    assert renamed.trainer_state({**saved, "state": {}}) == found  # as a reader with defaults gives it
