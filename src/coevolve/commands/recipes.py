"""``coevolve recipes``: list the recipes that come with the package, or show one."""

from __future__ import annotations

import argparse

from coevolve.commands import Commands, command
from coevolve.console import say
from coevolve.files import read_text


def add(commands: Commands) -> None:
    one = command(commands, "recipes", recipes, "list the recipes that come with the package, or show one")
    one.add_argument(
        "show", nargs="?", choices=["show"], help="its file, to copy: coevolve recipes show NAME > my.yaml"
    )
    one.add_argument("name", nargs="?", help="of the one to show")


def recipes(args: argparse.Namespace) -> None:
    from coevolve.recipe.packaged import about, located, packaged

    if args.show:
        if args.name is None:
            raise ValueError("show which one? `coevolve recipes` lists them")
        path = located(args.name)
        if not path.is_file():
            raise ValueError(f"{path} is no file; `coevolve recipes` lists the recipes that come with the package")
        say(read_text(path).rstrip())
        return
    known = packaged()
    width = max(map(len, known))
    for name, path in known.items():
        say(f"{name:{width}}  {about(path)}")
