"""``coevolve init``: write a starting point into this folder: commented Python, and a recipe that trains."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from coevolve.commands import Commands, command
from coevolve.console import say

_STARTS = Path(__file__).parents[1] / "assets" / "starts"
_KINDS = ("task", "reward", "play", "algorithm", "examples")


def add(commands: Commands) -> None:
    one = command(
        commands, "init", init, "write a start of your own into this folder: commented Python, and a recipe that trains"
    )
    one.add_argument(
        "kind",
        nargs="?",
        choices=_KINDS,
        default="task",
        help="what is to be your own (a task if left out); examples: all files of examples/, which the guide shows",
    )


def init(args: argparse.Namespace) -> None:
    if args.kind == "examples":
        from coevolve.recipe.packaged import examples

        _copy(examples(), Path("examples"))
        say("train one of them: coevolve train examples/rae.yaml")
        return
    sources = sorted(file for file in (_STARTS / args.kind).iterdir() if file.is_file())
    _copy(sources, Path())
    [recipe] = [file.name for file in sources if file.suffix == ".yaml"]
    say(f"train it: coevolve train {recipe}")


def _copy(sources: Sequence[Path], folder: Path) -> None:
    """Copy files into a folder. Raises ValueError, before anything is written, if one of them exists there."""
    if there := [folder / file.name for file in sources if (folder / file.name).exists()]:
        raise ValueError(
            f"{there[0]} is there already, and nothing is overwritten; move it, or start in another folder"
        )
    if folder.is_file():
        raise ValueError(f"{folder} is a file, and a folder of that name is to be written; start in another folder")
    folder.mkdir(exist_ok=True)
    for source in sources:
        with (folder / source.name).open("xb") as target:
            target.write(source.read_bytes())
        say(str(folder / source.name))
