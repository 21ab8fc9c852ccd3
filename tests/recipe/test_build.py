"""What a recipe says is what its trainer has."""

import dataclasses

from coevolve.recipe.schema import build, load_recipe
from coevolve.types import Sampling


def test_every_number_of_a_recipe_reaches_the_trainer(tmp_path):
    said = {"steps": 7, "batch_size": 5, "members": 4, "seed": 11, "reset_every": 3}
    given = [*(f"{key}={value}" for key, value in said.items()), "sampling.max_new_tokens=9"]
    recipe = load_recipe("cory-sentiment", [*given, f"output_dir={tmp_path / 'run'}"])
    trainer = build(recipe)
    assert {key: getattr(trainer, key) for key in said} == said
    assert dataclasses.asdict(trainer.sampling) == dataclasses.asdict(Sampling(max_new_tokens=9))
