"""What a recipe says is what its trainer has."""

import dataclasses
from pathlib import Path

import pytest
from toy import RECIPE

from coevolve.recipe.build import build
from coevolve.recipe.components import component
from coevolve.recipe.read import load_recipe
from coevolve.types import Sampling


def test_every_number_of_a_recipe_reaches_the_trainer(tmp_path):
    said = {"steps": 7, "batch_size": 5, "members": 4, "seed": 11, "reset_every": 3}
    given = [*(f"{key}={value}" for key, value in said.items()), "sampling.max_new_tokens=9"]
    recipe = load_recipe("cory-sentiment", [*given, f"output_dir={tmp_path / 'run'}"])
    trainer = build(recipe)
    assert {key: getattr(trainer, key) for key in said} == said
    assert dataclasses.asdict(trainer.sampling) == dataclasses.asdict(Sampling(max_new_tokens=9))


@pytest.mark.parametrize(("threads", "samples"), [(2, "torch"), (1, "cpu")])
def test_the_threads_of_a_recipe_are_those_where_the_engine_loads_a_policy(threads, samples, micro_model, tmp_path):
    pytest.importorskip("numba")
    toy = Path(__file__).parents[1] / "toy.py"
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(toy=toy, model=micro_model, out=tmp_path / "run"))
    frozen = ["policies.bob.weights=frozen", "policies.bob.engine=local", "cast=fixed", "workers=false"]
    computing = build(load_recipe(tmp_path / "recipe.yaml", [*frozen, f"threads={threads}"])).computing()
    assert computing["threads"] == threads
    assert f"a copy of bob: {samples}" in computing["engine"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["learner={own}:Nothing"],
            "policies.ann is .*Nothing.*; want a model name, a PolicySpec or a learner, which has",
        ),
        (["engine={own}:Nothing"], "trainer: engine is .*Nothing.*, which has no close; want an engine"),
        (["policies.ann.engine={own}:Nothing"], "engine is .*Nothing.*, which has no close; want an engine"),
    ],
)
def test_what_cannot_be_closed_is_refused_for_what_it_is(given, said, micro_model, tmp_path):
    toy, own = Path(__file__).parents[1] / "toy.py", tmp_path / "own.py"
    own.write_text("class Nothing:\n    def __init__(self, **how): pass\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(toy=toy, model=micro_model, out=tmp_path / "run"))
    with pytest.raises(ValueError, match=said):
        build(load_recipe(tmp_path / "recipe.yaml", [one.format(own=own) for one in given]))


def test_a_setting_may_be_called_what_pydantic_calls_a_method(recwarn):
    def made(*, copy=1, json="a", schema=False):
        return copy, json, schema

    assert component({"name": "made", "copy": 3, "json": "b", "schema": True}, {"made": made}, "task") == (3, "b", True)
    assert [str(one.message) for one in recwarn] == []
