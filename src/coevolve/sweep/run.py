"""A sweep from start to end: which runs are left, training them, and the table of results."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from coevolve import faults
from coevolve.console import WIDE, console
from coevolve.files import check_folder
from coevolve.late import torch
from coevolve.recipe.packaged import located
from coevolve.recipe.schema import Recipe
from coevolve.runs.folder import RunDir, steps_of
from coevolve.runs.lock import alone
from coevolve.runtime.cores import cores
from coevolve.sweep.grid import grid
from coevolve.sweep.pool import LOG, train_all
from coevolve.sweep.show import progress, table
from coevolve.sweep.slots import Slot, slots, visible


def sweep(
    recipe: str | Path, overrides: Iterable[str] = (), *, output: str | Path | None = None, jobs: int | None = None
) -> list[Path]:
    """Train every combination of the overrides' values, several at once; returns the run directories in their order.

        sweep("recipes/quickstart.yaml", ["seed=0..2", "algorithm.eta=0.1,0.3"])

    overrides: ``key=value``, ``key=a,b,c`` or ``key=0..9``. output: the folder of all runs, ``runs/<recipe>-sweep`` if
    left out. jobs: runs at once; None is what cores and GPUs allow. Finished runs in the folder are left alone and
    interrupted ones are resumed, so that repeating the call continues the sweep. Prints progress and a table.
    Raises ValueError, before anything starts, for an invalid combination and for a folder with a run of another recipe;
    at the end ChildProcessError if runs failed, which does not stop the others.
    """
    folder, recipes = _asked(recipe, overrides, output)
    out = console(WIDE, highlight=False)
    with alone(folder) as lock:
        left = unfinished(recipes)
        places = places_for(recipes, len(left), jobs)
        out.print(_headline(recipes, left, places, folder), soft_wrap=True)
        try:
            with progress(len(recipes) - len(left), len(recipes), out) as watch:
                failed = train_all(left, places, lock, watch)
        except KeyboardInterrupt as stop:
            done = len(recipes) - len(unfinished(recipes))
            said = f"stopped with {done} of {len(recipes)} runs done; the same command goes on"
            raise faults.Interrupted(getattr(stop, "number", signal.SIGINT), said) from None
    # A callback may have ended a run before its first step.
    begun = [one.output_dir for one in recipes if one.output_dir not in failed and RunDir(one.output_dir).lines]
    if begun:
        out.print(table(begun))
    for run, why in failed.items():
        out.print(f"failed: {run / LOG}: {why}", soft_wrap=True)
    if failed:
        raise ChildProcessError(f"{len(failed)} of {len(recipes)} runs failed; the same command tries them again")
    if begun:
        out.print(f"coevolve report {folder} -o {folder / 'report.html'}", soft_wrap=True)
    return [one.output_dir for one in recipes]


def plan(
    recipe: str | Path, overrides: Iterable[str] = (), *, output: str | Path | None = None, jobs: int | None = None
) -> str:
    """Return a description of what ``sweep`` would do. Writes nothing; raises what ``sweep`` would before it starts."""
    folder, recipes = _asked(recipe, overrides, output)
    left = unfinished(recipes)
    lines = [_headline(recipes, left, places_for(recipes, len(left), jobs), folder)]
    for one in recipes:
        done = _done(one)
        state = "done" if done >= one.steps else f"goes on at step {done} of {one.steps}" if done else "new"
        lines.append(f"  {one.output_dir.name}: {state}")
    return "\n".join(lines)


def _asked(recipe: str | Path, overrides: Iterable[str], output: str | Path | None) -> tuple[Path, list[Recipe]]:
    """Return the sweep's folder and its recipes. Raises ValueError if the folder is a file, and as ``grid`` does."""
    path = located(recipe)  # the file, since the stem of a bare name with dots would be cut: qwen2.5-1.5b
    folder = Path("runs") / f"{path.stem}-sweep" if output is None else Path(output)
    check_folder(folder, "output")
    return folder, grid(path, overrides, folder)


def unfinished(recipes: Iterable[Recipe]) -> list[Recipe]:
    """Return the recipes of the runs that have not reached their last step. Raises ValueError as ``_done`` does."""
    return [recipe for recipe in recipes if _done(recipe) < recipe.steps]


def _done(recipe: Recipe) -> int:
    """Return the number of steps done: those of the newest checkpoint, or all, if only a finished run's metrics remain.

    Raises ValueError as ``newest_step`` does, and for an unfinished run whose checkpoints are gone, which would begin
    anew over its metrics; and for one with metrics of more steps than asked for.
    """
    run, done = RunDir(recipe.output_dir), newest_step(recipe)
    if not run.lost_checkpoints:
        return done
    if run.lines < recipe.steps:
        run.check(recipe.steps, resume=True)  # raises, with the reason
    if run.lines > recipe.steps:
        raise ValueError(f"{run.path} has metrics of {run.lines} steps, more than the {recipe.steps} asked for")
    return run.lines


def newest_step(recipe: Recipe) -> int:
    """Return the steps of a run's newest checkpoint. Raises ValueError if the folder holds another run or a longer
    one."""
    run = RunDir(recipe.output_dir)
    if not (run.checkpoints() or run.lines):
        return 0
    run.check_resume(recipe.steps, recipe.record())
    return max(map(steps_of, run.checkpoints()), default=0)


def places_for(recipes: Sequence[Recipe], left: int, jobs: int | None) -> list[Slot]:
    """Return the slots for the runs of which ``left`` are to be made, by this machine's cores and GPUs."""
    return slots(recipes, left, jobs, cores(), visible(os.environ, torch.cuda.device_count()))


def _headline(recipes: Sequence[Recipe], left: Sequence[Recipe], places: Sequence[Slot], folder: Path) -> str:
    done = len(recipes) - len(left)
    threads = f"{places[0].threads} thread{'s' if places[0].threads > 1 else ''}"
    how = f"{len(places)} at once with {threads} each" if left else "nothing to do"
    count = f"{len(recipes)} run{'s' if len(recipes) > 1 else ''}"
    return f"{folder}: {count}, {done} of them done; {how}"
