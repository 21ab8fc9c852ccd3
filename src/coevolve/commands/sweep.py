"""``coevolve sweep``: train a recipe with several seeds and settings, several runs at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import RECIPE, Commands, command, side_by_side
from coevolve.console import say


def add(commands: Commands) -> None:
    one = command(commands, "sweep", sweep, "train a recipe with several seeds and settings, several runs at once")
    one.add_argument("recipe", type=Path, help=RECIPE)
    one.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=values",
        help="what varies: seed=0..9 algorithm.eta=0.03,0.1; or does not",
    )
    one.add_argument("--output", type=Path, metavar="FOLDER", help="of all runs; default: runs/<recipe>-sweep")
    side_by_side(one)
    one.add_argument("--dry-run", action="store_true", help="say what would be trained, and stop")


def sweep(args: argparse.Namespace) -> None:
    from coevolve import sweep as sweeping

    if args.dry_run:
        say(sweeping.plan(args.recipe, args.overrides, output=args.output, jobs=args.jobs))
        return
    sweeping.sweep(args.recipe, args.overrides, output=args.output, jobs=args.jobs)
