"""``coevolve train``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.commands import OVERRIDES, Commands, command, quiet
from coevolve.console import say

if TYPE_CHECKING:
    from coevolve.config import Recipe


def add(commands: Commands) -> None:
    one = command(commands, "train", train, "train the team of a recipe")
    one.add_argument("recipe", type=Path, help="a YAML file")
    one.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)
    one.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    one.add_argument("--dry-run", action="store_true", help="print the resolved recipe and the plan, and stop")


def train(args: argparse.Namespace) -> None:
    from coevolve.config import load_recipe

    quiet()
    recipe = load_recipe(args.recipe, args.overrides)
    if args.dry_run:
        from coevolve.plan import plan, problems

        say(plan(recipe))
        say(problems(recipe))  # last: where the task cannot be built here, the plan has been said
        return
    train_recipe(recipe, args.resume)
    _show(recipe.output_dir)


def train_recipe(recipe: Recipe, resume: bool) -> None:
    """Train, with progress on the terminal; an interruption says how to go on."""
    import torch

    from coevolve.config import build
    from coevolve.report.terminal import progress
    from coevolve.report.trackers import tracker
    from coevolve.rundir import RunDir

    done: list[int] = []
    try:
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        record, run = recipe.record(), recipe.output_dir
        if not resume:
            RunDir(run).check_free()  # before models are loaded, or pre-trained
        with tracker(recipe.report_to, run, record) as track:
            trainer = build(recipe)
            with progress(recipe.steps) as show:
                trainer.run(
                    run,
                    resume=resume,
                    save_every=recipe.save_every,
                    keep_last=recipe.keep_last,
                    samples=recipe.samples,
                    listeners=[show, track, lambda line: done.append(line["step"] + 1)],
                    recipe=record,
                )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped at step {done[-1] if done else 0}; continue with --resume") from None


def _show(run: Path) -> None:
    """The end of a training: how the reward moved, some dialogues, and where everything is."""
    from coevolve.report.plot import rise
    from coevolve.report.samples import show_samples
    from coevolve.rundir import read_lines

    show_samples(run)
    say(rise(read_lines(run / "metrics.jsonl")))
    say(f"plot: {run / 'reward-kl.png'}")
    say(f"run:  {run}")
    say(f"look at it: coevolve report {run}")
