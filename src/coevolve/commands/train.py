"""``coevolve train``."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.commands import OVERRIDES, Commands, command, quiet
from coevolve.console import say

if TYPE_CHECKING:
    from coevolve.recipe.schema import Recipe
    from coevolve.runs.folder import RunDir


def add(commands: Commands) -> None:
    one = command(commands, "train", train, "train the team of a recipe")
    one.add_argument("recipe", type=Path, help="a YAML file")
    one.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)
    one.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    one.add_argument("--dry-run", action="store_true", help="print the resolved recipe and the plan, and stop")


def train(args: argparse.Namespace) -> None:
    from coevolve.recipe.schema import check, load_recipe

    quiet()
    recipe = load_recipe(args.recipe, args.overrides)
    if args.dry_run:
        check(recipe)  # a mistake is told before torch comes, which takes seconds
        from coevolve.recipe.plan import plan, problems

        say(plan(recipe))
        say(problems(recipe))  # last: where the task cannot be built here, the plan has been said
        return
    train_recipe(recipe, args.resume)
    _show(recipe.output_dir)


def train_recipe(recipe: Recipe, resume: bool) -> None:
    """Train, with progress on the terminal; an interruption and a shortage say how to go on."""
    from coevolve.faults import Interrupted, ShortageError, closed_after, during, is_interrupt, lacking
    from coevolve.progress import progress
    from coevolve.recipe.schema import build
    from coevolve.report.trackers import tracker
    from coevolve.runs.folder import RunDir

    done: list[int] = []
    record, run = recipe.record(), RunDir(recipe.output_dir)
    try:
        run.check(recipe.steps, resume)  # before models are loaded, or pre-trained
        with tracker(recipe.report_to, run.path, record) as track:
            with during("building the team"):
                trainer = build(recipe)
            with closed_after([trainer]), progress(recipe.steps) as show:
                say(_computing(trainer.computing()))
                trainer.run(
                    run.path,
                    resume=resume,
                    save_every=recipe.save_every,
                    keep_last=recipe.keep_last,
                    samples=recipe.samples,
                    listeners=[show, track, lambda line: done.append(line["step"] + 1)],
                    recipe=record,
                )
    except KeyboardInterrupt as stop:
        if not is_interrupt(stop):  # code of the user's raised it
            raise
        said = f"stopped at step {done[-1] if done else 0}; {_how_to_go_on(run)}"
        raise Interrupted(getattr(stop, "number", signal.SIGINT), said) from None
    except Exception as error:
        if line := lacking(error):
            raise ShortageError(f"{line}; {_how_to_go_on(run)}") from error
        raise


def _how_to_go_on(run: RunDir) -> str:
    return "continue with --resume" if run.begun else "no run was begun; start it again"


def _show(run: Path) -> None:
    """The end of a training: how the reward moved, some dialogues, and where everything is."""
    from coevolve.report.plot import curves, rise
    from coevolve.report.samples import show_samples
    from coevolve.runs.folder import read_lines

    show_samples(run)
    say(rise(read_lines(run / "metrics.jsonl")))
    say(f"plot: {curves(run)}")
    say(f"run:  {run}")
    say(f"look at it: coevolve report {run}")


def _computing(found: Mapping[str, Any]) -> str:
    """A line: what computes for whom."""
    by_backend: dict[str, list[str]] = {}
    for name, about in found["policies"].items():
        by_backend.setdefault(about, []).append(name)
    backends = "; ".join(f"{', '.join(names)}: {about}" for about, names in by_backend.items())
    return f"compute: {backends}; sampled by {found['engine']}, threads {found['threads']}"
