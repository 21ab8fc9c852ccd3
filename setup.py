"""Stops a build that would leave the recipes out: they come through a symbolic link, which some checkouts lose."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RECIPES = Path(__file__).parent / "src" / "coevolve" / "assets" / "recipes"


class BuildWithRecipes(build_py):
    """``build_py``, once the recipes are there."""

    def run(self) -> None:
        if not any(RECIPES.glob("*.yaml")):
            raise SystemExit(
                f"{RECIPES} has no recipes: it is a symbolic link to recipes/, which this checkout lost; check out "
                "with links (git config core.symlinks true), or copy recipes/ there"
            )
        super().run()


setup(cmdclass={"build_py": BuildWithRecipes})
