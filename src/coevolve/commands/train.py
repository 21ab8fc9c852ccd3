"""``coevolve train``: train the team of a recipe."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.commands import RECIPE, Commands, command, overriding, quiet, resuming
from coevolve.console import say

if TYPE_CHECKING:
    from coevolve.recipe.schema import Recipe
    from coevolve.runs.folder import RunDir
    from coevolve.trainer import Trainer
    from coevolve.types import Sampling


def add(commands: Commands) -> None:
    one = command(commands, "train", train, "train the team of a recipe")
    one.add_argument("recipe", type=Path, help=RECIPE)
    overriding(one)
    resuming(one)
    one.add_argument("--dry-run", action="store_true", help="print the resolved recipe and the plan, and stop")
    about = "choose micro_tokens, and the local engine's max_tokens, by the memory that is free now"
    one.add_argument("--fit-memory", action="store_true", help=about)


def train(args: argparse.Namespace) -> None:
    from coevolve.recipe.build import check_taught
    from coevolve.recipe.packaged import packaged
    from coevolve.recipe.read import load_recipe

    quiet()
    recipes = packaged()
    if more := [w for w in args.overrides if "=" not in w and (w in recipes or w.endswith((".yaml", ".yml")))]:
        raise ValueError(
            f"one recipe a training, and here are {args.recipe} and {more[0]}; `coevolve sweep` trains several runs"
        )
    recipe = load_recipe(args.recipe, args.overrides)
    if not any(one.partition("=")[0].strip() == "output_dir" for one in args.overrides):
        _check_of_run(args.recipe, recipe.output_dir)
    check_taught(recipe)
    if args.fit_memory:
        recipe = _fitted(recipe, args.resume, args.dry_run)
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


def _check_of_run(path: Path, output: Path) -> None:
    """Raise ValueError for the recipe in a run's folder that names another one, as in a copy of the run."""
    run = path.parent
    if path.name == "recipe.yaml" and (run / "metrics.jsonl").is_file() and run.resolve() != output.resolve():
        raise ValueError(
            f"{path} is in the folder of a run, and its output_dir is another one, {output}; to go on with this run, "
            f"say output_dir={run}"
        )


def _plan(recipe: Recipe, resume: bool) -> None:
    """Print the plan of a training. Raises ValueError for mistakes that training would report before its first step,
    except in models."""
    from coevolve.recipe.build import check
    from coevolve.recipe.warned import warn_of_settings
    from coevolve.report import trackers
    from coevolve.runs.folder import RunDir

    check(recipe)  # finds mistakes before the import of torch, which takes seconds
    warn_of_settings(recipe)
    trackers.check(recipe.report_to)
    from coevolve.recipe.plan import plan, problems
    from coevolve.runtime.placement import check_threads

    if recipe.threads is not None:
        check_threads(recipe.threads)
    say(plan(recipe))
    # Last, so that the plan is printed even if the task cannot be built here, or the run exists or is being trained.
    for line in problems(recipe):
        say(line)
    RunDir(recipe.output_dir).check(recipe.steps, resume, recipe.record())


def _fitted(recipe: Recipe, resume: bool, dry_run: bool) -> Recipe:
    """Return the recipe with sizes for the memory that is free now, and print them (for a dry run as comments); a model
    that has yet to be pre-trained is, unless this is a dry run. Raises ValueError as ``fitted`` does."""
    from coevolve.recipe.build import check, pretrain
    from coevolve.report import trackers
    from coevolve.runs.folder import RunDir

    check(recipe)  # finds mistakes before the import of torch, which takes seconds
    if not dry_run and not _by_torchrun(recipe):
        trackers.check(recipe.report_to)
        RunDir(recipe.output_dir).check(recipe.steps, resume, recipe.record())
        pretrain(recipe)
    from coevolve.recipe.fit import fitted

    found, lines = fitted(recipe)
    if resume:
        lines += _other_sizes(recipe.output_dir, found)
    for line in lines:
        say(f"{'# ' * dry_run}{line}")
    return found


def _other_sizes(run: Path, recipe: Recipe) -> list[str]:
    """Return a line for each size that the run had before a recipe goes on with it with another one."""
    from coevolve.recipe.memory import positions
    from coevolve.recipe.read import load_recipe

    if not (run / "recipe.yaml").is_file():
        return []
    old = load_recipe(run / "recipe.yaml")
    before, now = (
        {f"micro_tokens of {name}": spec.micro_tokens for name, spec in one.policies.items()}
        | {f"max_tokens of {name}": positions(one, spec) for name, spec in one.policies.items()}
        for one in (old, recipe)
    )
    return [
        f"{key} was {before[key]:,} in the run: sums are rounded otherwise from here on"
        for key in now
        if before.get(key, now[key]) != now[key]
    ]


def _by_torchrun(recipe: Recipe) -> bool:
    """Return whether torchrun started this command in every rank's process. Raises ValueError if torchrun started it
    and the recipe does not use torchrun."""
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
    """Train with progress on the terminal. The messages of an interrupt and of a ShortageError say how to continue."""
    from coevolve.faults import Interrupted, ShortageError, closed_after, during, is_interrupt, lacking
    from coevolve.late import collector_off
    from coevolve.progress import progress
    from coevolve.recipe.build import build
    from coevolve.recipe.warned import warn_of_settings
    from coevolve.report.trackers import trackers
    from coevolve.runs.folder import RunDir

    done: list[int] = []
    record, run, place = recipe.record(), RunDir(recipe.output_dir), RunDir(recipe.output_dir.absolute())
    try:
        run.check(recipe.steps, resume, record)  # before models are loaded, or pre-trained
        with trackers(recipe.report_to, place.path, record) as callbacks:
            with during("building the team"), collector_off():
                warn_of_settings(recipe)
                trainer = build(recipe)
            with closed_after([trainer]), progress(recipe.steps) as show:
                say(_computing(trainer.computing(), recipe.sampling))
                listeners = [lambda line: done.append(line["step"] + 1), show]
                how = {key: getattr(recipe, key) for key in ("save_every", "keep_last", "samples")}
                told: dict[str, Any] = {"listeners": listeners, "callbacks": callbacks}
                go = partial(_go, trainer, run.path, place.path, recipe=record, **told, **how)
                _run(run, go, resume)
    except KeyboardInterrupt as stop:
        if not is_interrupt(stop):  # raised by the user's code
            raise
        said = f"stopped at step {_reached(place, done)}; {_how_to_go_on(place)}"
        raise Interrupted(getattr(stop, "number", signal.SIGINT), said) from None
    except Exception as error:
        if line := lacking(error):
            raise ShortageError(f"{line}; {_how_to_go_on(place)}") from error
        raise


def _there(run: Path, place: Path) -> Path:
    """Return the run's folder as it was named, or as an absolute path if the user's code changed the working directory.

    place: the absolute path."""
    return run if run.absolute() == place else place


def _go(trainer: Trainer, run: Path, place: Path, **how: Any) -> None:
    """Train in the run's folder; called again after ranks were lost, when the working directory may have changed."""
    trainer.run(_there(run, place), **how)


def _run(run: RunDir, train: Callable[..., object], resume: bool) -> None:
    """Train to the last step. If ranks are lost, all policies continue from the last checkpoint, at most once from each
    checkpoint."""
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


def _reached(run: RunDir, done: Sequence[int]) -> str:
    """Return the number of the step that was reached, and of the newest checkpoint's if that is another."""
    from coevolve.runs.folder import steps_of

    last = max(map(steps_of, run.checkpoints()), default=0)
    if not done or done[-1] == last:
        return str(last)
    return f"{done[-1]} ({f'the last checkpoint is of step {last}' if last else 'no checkpoint yet'}, see save_every)"


def _show(run: Path) -> None:
    """Print the end of a training: how the reward changed, some dialogues, and the paths of its files."""
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


def _computing(found: Mapping[str, Any], sampling: Sampling) -> str:
    """Return a line for the terminal: the backend of each policy, the engine, the limit of a turn and the numbers of
    threads."""
    by_backend: dict[str, list[str]] = {}
    for name, about in found["policies"].items():
        by_backend.setdefault(about, []).append(name)
    backends = "; ".join(f"{', '.join(names)}: {about}" for about, names in by_backend.items())
    several = f", {found['product_threads']} for large products" * (found["product_threads"] > 1)
    longest = " to ".join(str(tokens) for tokens in dict.fromkeys(sampling.length_range))
    sampled = f"sampled by {found['engine']}, at most {longest} tokens a turn"
    return f"compute: {backends}; {sampled}; threads {found['threads']}{several}"
