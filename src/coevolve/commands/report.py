"""``coevolve report``: write a page about runs: curves, comparisons, dialogues."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.commands import Commands, command
from coevolve.console import say
from coevolve.files import check_place

if TYPE_CHECKING:
    from coevolve.report.runs import Run

_FORMS = (".html", ".md", ".png")


def add(commands: Commands) -> None:
    one = command(commands, "report", report, "make a page of runs: curves, comparisons, dialogues")
    one.add_argument("runs", type=Path, nargs="+", metavar="run", help="a run directory, or a folder of them")
    one.add_argument(
        "-o",
        "--output",
        type=Path,
        help="what to write: .html, the page; .md, tables with pictures beside it; .png, the curves of reward, KL and "
        "objective. Default: report.html, in the run or folder if it is only one",
    )
    one.add_argument("--watch", action="store_true", help="serve the page on this machine, fresh while training runs")
    one.add_argument("--port", type=int, help="where --watch serves; default: a free one")


def report(args: argparse.Namespace) -> None:
    if args.watch:
        if args.output:
            raise ValueError("--watch serves the page and writes none; leave --output out")
        from coevolve.report.watch import watch

        return watch(args.runs, args.port or 0)
    if args.port is not None:
        raise ValueError("--port is for --watch")
    from coevolve.report.findings.ends import rise
    from coevolve.report.runs import find
    from coevolve.runs.lock import LOCK, alone

    output = args.output or _inside(args.runs) / "report.html"
    if output.suffix not in _FORMS:
        raise ValueError(f"--output {output}: want a name that ends in {', '.join(_FORMS)}")
    check_place(output, "--output")
    runs = find(args.runs)
    with alone(output.parent, wait=True, name=f".{output.name}{LOCK}"):  # not the run's lock, which training holds
        written = _write(runs, output)
    for run in runs:
        say(f"{run.path}: {rise(run.lines)}")
    for file in written:
        say(f"report: {file}")
    return None


def _inside(paths: Sequence[Path]) -> Path:
    """Return the only path, a run or a folder of runs; for several paths, the current folder."""
    return paths[0] if len(paths) == 1 else Path()


def _write(runs: Sequence[Run], output: Path) -> list[Path]:
    if output.suffix == ".html":
        from coevolve.report.page.build import write_page

        return [write_page(runs, output)]
    if output.suffix == ".md":
        from coevolve.report.paper import write_paper

        return write_paper(runs, output)
    from coevolve.report.plot import reward_kl

    reward_kl([run.path for run in runs], output)
    return [output]
