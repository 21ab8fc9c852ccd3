"""The recipes that come with the package: ``coevolve train quickstart`` needs no file."""

from __future__ import annotations

from pathlib import Path

from coevolve.recipe.inputs import did_you_mean

HERE = Path(__file__).resolve()
BUILT = HERE.parents[1] / "assets" / "recipes"
CHECKOUT = HERE.parents[3] / "recipes"


def packaged() -> dict[str, Path]:
    """The files by name, in the order of the alphabet. A wheel has them in it, a checkout at its root."""
    folder = BUILT if BUILT.is_dir() else CHECKOUT
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def located(recipe: str | Path) -> Path:
    """The file that was meant: a path, or else the name of a packaged recipe. Raises ValueError for no such name."""
    path = Path(recipe)
    recipes = packaged()
    is_file = path.suffix in (".yaml", ".yml")  # names have dots, too: qwen3-1.7b
    if is_file and not path.exists() and path.stem in recipes:
        raise ValueError(f"no file {path}; the recipe of that name comes with the package; write {path.stem}")
    if is_file or len(path.parts) != 1 or path.exists():
        return path
    if path.name not in recipes:
        near = did_you_mean(path.name, recipes)
        raise ValueError(
            f"no file {path}, and no recipe of the package has that name{near} (`coevolve recipes` lists them)"
        )
    return recipes[path.name]


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
