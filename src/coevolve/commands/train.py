"""``coevolve train``: train the team of a recipe."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.commands import RECIPE, Commands, command, overriding, quiet, resuming
from coevolve.console import say

if TYPE_CHECKING:
    from coevolve.recipe.schema import Recipe
    from coevolve.runs.folder import RunDir
    from coevolve.trainer import Trainer


def add(commands: Commands) -> None:
    one = command(commands, "train", train, "train the team of a recipe")
    one.add_argument("recipe", type=Path, help=RECIPE)
    overriding(one)
    resuming(one)
    one.add_argument("--dry-run", action="store_true", help="print the resolved recipe and the plan, and stop")


def train(args: argparse.Namespace) -> None:
    from coevolve.recipe.packaged import packaged
    from coevolve.recipe.schema import check_taught, load_recipe

    quiet()
    recipes = packaged()
    if more := [w for w in args.overrides if "=" not in w and (w in recipes or w.endswith((".yaml", ".yml")))]:
        raise ValueError(
            f"one recipe a training, and here are {args.recipe} and {more[0]}; `coevolve sweep` trains several runs"
        )
    recipe = load_recipe(args.recipe, args.overrides)
    check_taught(recipe)
    if args.dry_run:
        _plan(recipe, args.resume)
        return
    if _by_torchrun(recipe):
        from coevolve.runtime.launched import serve

        if serve():
            return
    place = recipe.output_dir.absolute()
    train_recipe(recipe, args.resume)
    _show(_there(recipe.output_dir, place))


def _plan(recipe: Recipe, resume: bool) -> None:
    """What would be done. Raises ValueError for what training would refuse before its first step, models aside."""
    from coevolve.recipe.schema import check
    from coevolve.recipe.unused import warn_of_unused
    from coevolve.report import trackers
    from coevolve.runs.folder import RunDir

    check(recipe)  # a mistake is told before torch comes, which takes seconds
    warn_of_unused(recipe)
    trackers.check(recipe.report_to)
    from coevolve.recipe.plan import plan, problems
    from coevolve.runtime.placement import check_threads

    if recipe.threads is not None:
        check_threads(recipe.threads)
    say(plan(recipe))
    # Last: the plan has been said where the task cannot be built here, and of a run that is there or goes on just now.
    say(problems(recipe))
    RunDir(recipe.output_dir).check(recipe.steps, resume)


def _by_torchrun(recipe: Recipe) -> bool:
    """Whether torchrun has started this command in every rank's process. Raises ValueError where that helps nobody."""
    from coevolve.learners import by_torchrun

    if by_torchrun(recipe.learner):
        return True
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ValueError(
            "torchrun started this several times over, and the recipe does not ask for it; say "
            "'learner={name: fsdp, ranks: N, cluster: torchrun}', or start it without torchrun"
        )
    return False


def train_recipe(recipe: Recipe, resume: bool) -> None:
    """Train, with progress on the terminal; an interruption and a shortage say how to go on."""
    from coevolve.faults import Interrupted, ShortageError, closed_after, during, is_interrupt, lacking
    from coevolve.late import collector_off
    from coevolve.progress import progress
    from coevolve.recipe.schema import build
    from coevolve.recipe.unused import warn_of_unused
    from coevolve.report.trackers import trackers
    from coevolve.runs.folder import RunDir, steps_of

    done: list[int] = []
    record, run, place = recipe.record(), RunDir(recipe.output_dir), RunDir(recipe.output_dir.absolute())
    try:
        run.check(recipe.steps, resume)  # before models are loaded, or pre-trained
        with trackers(recipe.report_to, place.path, record) as callbacks:
            with during("building the team"), collector_off():
                warn_of_unused(recipe)
                trainer = build(recipe)
            with closed_after([trainer]), progress(recipe.steps) as show:
                say(_computing(trainer.computing()))
                listeners = [lambda line: done.append(line["step"] + 1), show]
                how = {key: getattr(recipe, key) for key in ("save_every", "keep_last", "samples")}
                told: dict[str, Any] = {"listeners": listeners, "callbacks": callbacks}
                go = partial(_go, trainer, run.path, place.path, recipe=record, **told, **how)
                _run(run, go, resume)
    except KeyboardInterrupt as stop:
        if not is_interrupt(stop):  # code of the user's raised it
            raise
        before = max(map(steps_of, place.checkpoints()), default=0)
        said = f"stopped at step {done[-1] if done else before}; {_how_to_go_on(place)}"
        raise Interrupted(getattr(stop, "number", signal.SIGINT), said) from None
    except Exception as error:
        if line := lacking(error):
            raise ShortageError(f"{line}; {_how_to_go_on(place)}") from error
        raise


def _there(run: Path, place: Path) -> Path:
    """The run's folder as it was named, or by its whole path if code of the user's has left the working directory."""
    return run if run.absolute() == place else place


def _go(trainer: Trainer, run: Path, place: Path, **how: Any) -> None:
    """Train in the folder where the run is now: again, where ranks were lost."""
    trainer.run(_there(run, place), **how)


def _run(run: RunDir, train: Callable[..., object], resume: bool) -> None:
    """Train to the last step. Where ranks are lost, all policies go on from the last checkpoint, once for each."""
    from coevolve.faults import RanksLostError
    from coevolve.runs.folder import RunDir

    tried, place = None, RunDir(run.path.absolute())
    while True:
        try:
            train(resume=resume)
            return
        except RanksLostError as error:
            [*_, last] = [None, *place.checkpoints()]
            if last is None or last == tried:
                raise
            say(f"{error}; all policies go on from {run.path / last.name}")
            tried, resume = last, True


def _how_to_go_on(run: RunDir) -> str:
    return "continue with --resume" if run.begun else "no run was begun; start it again"


def _show(run: Path) -> None:
    """The end of a training: how the reward moved, some dialogues, and where everything is."""
    from coevolve.report.findings.ends import rise
    from coevolve.report.plot import curves
    from coevolve.report.samples import show_samples
    from coevolve.runs.folder import read_lines

    found = read_lines(run / "metrics.jsonl")
    if not found:
        say(f"no step was trained; run: {run}")
        return
    show_samples(run)
    say(rise(found))
    say(f"plot: {curves(run)}")
    say(f"run:  {run}")
    say(f"look at it: coevolve report {run}")


def _computing(found: Mapping[str, Any]) -> str:
    """A line: what computes for whom."""
    by_backend: dict[str, list[str]] = {}
    for name, about in found["policies"].items():
        by_backend.setdefault(about, []).append(name)
    backends = "; ".join(f"{', '.join(names)}: {about}" for about, names in by_backend.items())
    several = f", {found['product_threads']} for large products" * (found["product_threads"] > 1)
    return f"compute: {backends}; sampled by {found['engine']}, threads {found['threads']}{several}"
