"""Real runs, small and short, to be exported."""

from __future__ import annotations

from pathlib import Path

from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"


def trained(recipe: Path, run: Path, *overrides: str) -> Path:
    """The directory of a run of this recipe, made now."""
    read = load_recipe(recipe, [*overrides, f"output_dir={run}"])
    return build(read).run(run, save_every=1, samples=2, recipe=read.record())
