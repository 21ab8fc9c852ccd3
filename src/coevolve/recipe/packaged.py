"""The recipes and examples that come with the package: ``coevolve train quickstart`` needs no file."""

from __future__ import annotations

import os
from pathlib import Path

from coevolve.names import did_you_mean

HERE = Path(__file__).resolve()


def packaged() -> dict[str, Path]:
    """Return the packaged recipes by name, in alphabetical order."""
    return {path.stem: path for path in sorted(_folder("recipes").glob("*.yaml"))}


def examples() -> list[Path]:
    """Return the files of the packaged examples, in alphabetical order."""
    return sorted(path for path in _folder("examples").iterdir() if path.is_file())


def _folder(name: str) -> Path:
    """Return the folder of this name: inside the package in a wheel, at the repository's root in a checkout."""
    built = HERE.parents[1] / "assets" / name
    return built if built.is_dir() else HERE.parents[3] / name


def located(recipe: str | Path) -> Path:
    """Return the file of a recipe that is given as a path or as the name of a packaged recipe.

    Raises ValueError for a name that no packaged recipe has, and for a folder with a recipe, as a run is.
    """
    path = Path(recipe)
    recipes = packaged()
    is_file = path.suffix in (".yaml", ".yml")  # names of packaged recipes have dots, too: qwen3-1.7b
    if is_file and not path.exists() and path.stem in recipes:
        raise ValueError(f"no file {path}; the recipe of that name comes with the package; write {path.stem}")
    if (path / "recipe.yaml").is_file() and str(path) not in recipes:
        raise ValueError(f"{path} is a folder; the recipe in it is {path / 'recipe.yaml'}")
    if is_file or len(path.parts) != 1 or path.is_file():  # not path.exists(): an unrelated folder may have the name
        return path
    if path.name not in recipes:
        near = did_you_mean(path.name, recipes)
        raise ValueError(
            f"no file {path}, and no recipe of the package has that name{near} (`coevolve recipes` lists them)"
        )
    return recipes[path.name]


def beside(file: str, folder: Path) -> Path:
    """Return the path of a file that a recipe in this folder names.

    If there is no such file, but a packaged recipe of exactly that name, return the latter: a recipe that was copied
    out of the package names others of the package.
    """
    path = (folder / os.path.expanduser(file)).absolute()
    ours = None if os.path.exists(path) else packaged().get(file.removesuffix(".yaml"))
    return ours if ours is not None and ours.name == file else path


def is_recipe(path: Path) -> bool:
    """Return whether a path means a recipe (a file, or the name of a packaged one) rather than the folder of a run."""
    named = len(path.parts) == 1 and not path.exists() and path.name in packaged()
    return path.suffix in (".yaml", ".yml") or named


def about(path: Path) -> str:
    """Return the first sentence of the comment at the top of a recipe."""
    comment = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return " ".join(comment).split(". ")[0].rstrip(".:")
