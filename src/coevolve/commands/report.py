"""``coevolve report``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import Commands, command


def add(commands: Commands) -> None:
    one = command(
        commands, "report", report, "draw the curves of runs; several seeds of one recipe become one line with a band"
    )
    one.add_argument("runs", type=Path, nargs="+", metavar="run", help="a run directory")
    one.add_argument("--output", type=Path, help="the picture; default: reward-kl.png, in the run if it is only one")


def report(args: argparse.Namespace) -> None:
    from coevolve.report.plot import reward_kl, rise
    from coevolve.rundir import read_lines

    one = args.runs[0] if len(args.runs) == 1 else Path()
    output = args.output or one / "reward-kl.png"
    reward_kl(args.runs, output)
    for run in args.runs:
        print(f"{run}: {rise(read_lines(run / 'metrics.jsonl'))}")
    print(f"plot: {output}")
