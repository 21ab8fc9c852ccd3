"""``coevolve pretrain``: train a small model from scratch by a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import RECIPE, Commands, command, overriding, resuming
from coevolve.console import say


def add(commands: Commands) -> None:
    one = command(commands, "pretrain", pretrain, "train a small model from scratch by a recipe")
    one.add_argument("recipe", type=Path, help=RECIPE)
    overriding(one)
    resuming(one)


def pretrain(args: argparse.Namespace) -> None:
    from coevolve.pretrain.recipe import load
    from coevolve.recipe.packaged import located

    recipe = located(args.recipe)
    load(recipe, args.overrides)  # finds mistakes before the import of torch, which takes seconds
    from coevolve.pretrain import run as pretraining

    if args.resume:  # an error only here: from Python, ``main`` with resume starts a run that is not there yet
        pretraining.check_resume(recipe, args.overrides)
    say(f"model: {pretraining.main(recipe, args.overrides, args.resume)}")
