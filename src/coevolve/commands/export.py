"""``coevolve export``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import Commands, command, quiet, trusting
from coevolve.console import say


def add(commands: Commands) -> None:
    one = command(commands, "export", export, "write a trained team to a folder that others can load and play")
    one.add_argument("run", type=Path, help="a run directory")
    one.add_argument("output", type=Path, help="the folder to write; it must not be there, or be empty")
    one.add_argument("--checkpoint", type=int, metavar="N", help="the checkpoint after N steps instead of the newest")
    one.add_argument("--merge", action="store_true", help="add adapters to their bases: plain Hugging Face folders")
    trusting(one)


def export(args: argparse.Namespace) -> None:
    from coevolve.teams.export import export

    quiet()
    made = export(args.run, args.output, step=args.checkpoint, merge=args.merge, trust_code=args.trust_code)
    say(f"team: {made}")
