"""``coevolve diagnose``: play a team in altered ways, to measure how its roles depend on each other."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import Commands, at_checkpoint, command, on_held_out, quiet, trusting
from coevolve.console import say
from coevolve.held_out import DIAGNOSED


def add(commands: Commands) -> None:
    one = command(
        commands, "diagnose", diagnose, "play a team in altered ways: who needs whom, who hears what, who is lazy"
    )
    one.add_argument("run", type=Path, help="a run directory")
    one.add_argument(
        "--with", dest="beside", type=Path, nargs="+", action="extend", default=[], metavar="OTHER",
        help="runs, or their checkpoint folders, for cross-play",
    )  # fmt: skip
    on_held_out(one, DIAGNOSED)
    at_checkpoint(one)
    trusting(one)


def diagnose(args: argparse.Namespace) -> None:
    from rich.text import Text

    from coevolve.console import console
    from coevolve.diagnose import diagnose as measure
    from coevolve.report.findings.diagnostics import FILE, sections, show
    from coevolve.report.runs import read

    quiet()
    with console().status("playing the team as it was trained") as status:
        measure(
            args.run,
            beside=args.beside,
            problems=args.problems,
            checkpoint=args.checkpoint,
            trust_code=args.trust_code,
            listener=lambda row: status.update(Text(f"played: {row['kind']}, {row['setting']}, {row['role']}")),
        )
    show(sections(read(args.run)))
    say(f"diagnostics: {args.run / FILE}")
