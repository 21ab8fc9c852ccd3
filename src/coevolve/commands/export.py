"""``coevolve export``: write a trained team to a folder that others can load and play."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import Commands, at_checkpoint, command, quiet, trusting
from coevolve.console import say


def add(commands: Commands) -> None:
    one = command(commands, "export", export, "write a trained team to a folder that others can load and play")
    one.add_argument("run", type=Path, help="a run directory")
    one.add_argument("output", type=Path, help="the folder to write; it must not be there, or be empty")
    at_checkpoint(one)
    one.add_argument("--merge", action="store_true", help="add adapters to their bases: plain Hugging Face folders")
    one.add_argument(
        "--push-to", metavar="OWNER/NAME", help="then upload the folder to this model of the Hugging Face hub"
    )
    one.add_argument("--private", action="store_true", help="make that model a private one, if it is not there yet")
    trusting(one)


def export(args: argparse.Namespace) -> None:
    from coevolve.models.names import check_repo

    if args.push_to is not None:
        check_repo(args.push_to)
    elif args.private:
        raise ValueError("--private is for --push-to OWNER/NAME")
    quiet()
    from coevolve.teams.export import export
    from coevolve.teams.hub import push_to_hub

    made = export(args.run, args.output, step=args.checkpoint, merge=args.merge, trust_code=args.trust_code)
    say(f"team: {made}")
    if args.push_to is not None:
        say(f"hub: {push_to_hub(made, args.push_to, private=args.private)}")
