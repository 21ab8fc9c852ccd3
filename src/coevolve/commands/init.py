"""``coevolve init``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import Commands, command
from coevolve.console import say

_STARTS = Path(__file__).parents[1] / "assets" / "starts"
_KINDS = ("task", "reward", "play", "algorithm")


def add(commands: Commands) -> None:
    one = command(
        commands, "init", init, "write a start of your own into this folder: commented Python, and a recipe that trains"
    )
    one.add_argument(
        "kind", nargs="?", choices=_KINDS, default="task", help="what is to be your own (a task if left out)"
    )


def init(args: argparse.Namespace) -> None:
    sources = sorted(file for file in (_STARTS / args.kind).iterdir() if file.is_file())
    if there := [file.name for file in sources if Path(file.name).exists()]:
        raise ValueError(
            f"{there[0]} is there already, and nothing is overwritten; move it, or start in another folder"
        )
    for source in sources:
        with Path(source.name).open("xb") as target:
            target.write(source.read_bytes())
        say(source.name)
    [recipe] = [file.name for file in sources if file.suffix == ".yaml"]
    say(f"train it: coevolve train {recipe}")
