"""Puts recipes/ into the package when it is built; a checkout, installed by reference, has them at its root."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RECIPES = Path(__file__).parent / "recipes"


class BuildWithRecipes(build_py):
    """``build_py``, and the recipes as ``coevolve/assets/recipes``. A copy, since not every checkout keeps links."""

    def run(self) -> None:
        files = sorted(RECIPES.glob("*.yaml"))
        if not files:
            raise SystemExit(f"{RECIPES} has no recipes, which belong into the package")
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "coevolve", "assets", "recipes")
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                shutil.copy(file, folder)


setup(cmdclass={"build_py": BuildWithRecipes})
