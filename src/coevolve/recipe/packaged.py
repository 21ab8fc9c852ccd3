"""The recipes and examples that come with the package: ``coevolve train quickstart`` needs no file."""

from __future__ import annotations

import os
from pathlib import Path

from coevolve.recipe.inputs import did_you_mean

HERE = Path(__file__).resolve()


def packaged() -> dict[str, Path]:
    """The recipes by name, in the order of the alphabet."""
    return {path.stem: path for path in sorted(_folder("recipes").glob("*.yaml"))}


def examples() -> list[Path]:
    """The files of the examples, in the order of the alphabet."""
    return sorted(path for path in _folder("examples").iterdir() if path.is_file())


def _folder(name: str) -> Path:
    """A wheel has it in it, a checkout at its root."""
    built = HERE.parents[1] / "assets" / name
    return built if built.is_dir() else HERE.parents[3] / name


def located(recipe: str | Path) -> Path:
    """The file that was meant: a path, or else the name of a packaged recipe. Raises ValueError for no such name."""
    path = Path(recipe)
    recipes = packaged()
    is_file = path.suffix in (".yaml", ".yml")  # names have dots, too: qwen3-1.7b
    if is_file and not path.exists() and path.stem in recipes:
        raise ValueError(f"no file {path}; the recipe of that name comes with the package; write {path.stem}")
    if is_file or len(path.parts) != 1 or path.is_file():  # a folder of that name may be there for other reasons
        return path
    if path.name not in recipes:
        near = did_you_mean(path.name, recipes)
        raise ValueError(
            f"no file {path}, and no recipe of the package has that name{near} (`coevolve recipes` lists them)"
        )
    return recipes[path.name]


def beside(file: str, folder: Path) -> Path:
    """The file that a recipe in this folder names; if there is none, the packaged recipe of that very name, if there is
    one: a recipe that was copied out of the package names others of it."""
    path = (folder / file).absolute()
    ours = None if os.path.exists(path) else packaged().get(file.removesuffix(".yaml"))
    return ours if ours is not None and ours.name == file else path


def is_recipe(path: Path) -> bool:
    """Whether a recipe is meant, by its file or by the name of a packaged one, rather than the folder of a run."""
    named = len(path.parts) == 1 and not path.exists() and path.name in packaged()
    return path.suffix in (".yaml", ".yml") or named


def about(path: Path) -> str:
    """The first sentence of the comment that a recipe begins with."""
    comment = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return " ".join(comment).split(". ")[0].rstrip(".:")
