"""Puts recipes/ and examples/ into the package that is built; an editable install reads them at the root."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithRecipes(build_py):
    """``build_py``, and both folders in ``coevolve/assets``. Copies, since not every checkout keeps links."""

    def run(self) -> None:
        found = {name: [file for file in (ROOT / name).glob("*") if file.is_file()] for name in ("recipes", "examples")}
        for name, files in found.items():
            if not files:
                raise SystemExit(f"{ROOT / name} has no files, which belong into the package")
        super().run()
        if self.editable_mode:
            return
        for name, files in found.items():
            folder = Path(self.build_lib, "coevolve", "assets", name)
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                shutil.copy(file, folder)


setup(cmdclass={"build_py": BuildWithRecipes})
