"""A sweep from beginning to end: what there is to do, doing it, and what came of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from coevolve import faults
from coevolve.console import WIDE, console
from coevolve.files import check_folder
from coevolve.late import torch
from coevolve.recipe import renamed
from coevolve.recipe.inputs import load_yaml
from coevolve.recipe.packaged import located
from coevolve.recipe.schema import Recipe
from coevolve.runs.folder import RunDir, steps_of
from coevolve.runs.identity import same_recipe
from coevolve.runs.lock import alone
from coevolve.runtime.cores import cores
from coevolve.sweep.grid import grid
from coevolve.sweep.pool import LOG, train_all
from coevolve.sweep.show import progress, table
from coevolve.sweep.slots import Slot, slots, visible


def sweep(
    recipe: str | Path, overrides: Iterable[str] = (), *, output: str | Path | None = None, jobs: int | None = None
) -> list[Path]:
    """Train every combination of what varies, several at once; returns the run directories in their order.

        sweep("recipes/quickstart.yaml", ["seed=0..2", "algorithm.eta=0.1,0.3"])

    overrides: ``key=value``, ``key=a,b,c`` or ``key=0..9``. output: the folder of all runs, ``runs/<recipe>-sweep`` if
    left out. jobs: runs at once; None is what cores and GPUs allow. What is done there already is left alone and what
    is half done goes on, so the same call again continues. Prints progress and a table.
    Raises ValueError, before anything starts, for a combination that is no recipe and for a folder with a run of
    another recipe; at the end ChildProcessError if runs failed, which stops no others.
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
    out.print(table([one.output_dir for one in recipes if one.output_dir not in failed]))
    for run, why in failed.items():
        out.print(f"failed: {run / LOG}: {why}", soft_wrap=True)
    if failed:
        raise ChildProcessError(f"{len(failed)} of {len(recipes)} runs failed; the same command tries them again")
    out.print(f"coevolve report {folder} -o {folder / 'report.html'}", soft_wrap=True)
    return [one.output_dir for one in recipes]


def plan(
    recipe: str | Path, overrides: Iterable[str] = (), *, output: str | Path | None = None, jobs: int | None = None
) -> str:
    """What ``sweep`` would do. Writes nothing; raises what ``sweep`` would raise before anything starts."""
    folder, recipes = _asked(recipe, overrides, output)
    left = unfinished(recipes)
    lines = [_headline(recipes, left, places_for(recipes, len(left), jobs), folder)]
    for one in recipes:
        done = _done(one)
        state = "done" if done >= one.steps else f"goes on at step {done} of {one.steps}" if done else "new"
        lines.append(f"  {one.output_dir.name}: {state}")
    return "\n".join(lines)


def _asked(recipe: str | Path, overrides: Iterable[str], output: str | Path | None) -> tuple[Path, list[Recipe]]:
    """The folder of all runs, and their recipes. Raises ValueError if the folder is a file, and as ``grid`` does."""
    path = located(recipe)  # of a bare name the stem may be less than the name: qwen2.5-1.5b
    folder = Path("runs") / f"{path.stem}-sweep" if output is None else Path(output)
    check_folder(folder, "output")
    return folder, grid(path, overrides, folder)


def unfinished(recipes: Iterable[Recipe]) -> list[Recipe]:
    """The runs that have not reached their last step."""
    return [recipe for recipe in recipes if _done(recipe) < recipe.steps]


def _done(recipe: Recipe) -> int:
    """The steps that need not be run: those of its newest checkpoint, or all, where only its metrics were kept.

    Raises ValueError as ``newest``, and for a run that would begin anew, over its metrics, because its checkpoints are
    gone.
    """
    run, done = RunDir(recipe.output_dir), newest(recipe)
    if not run.lost_checkpoints:
        return done
    if run.lines < recipe.steps:
        run.check(recipe.steps, resume=True)  # which says what is wrong
    if run.lines > recipe.steps:
        raise ValueError(f"{run.path} has metrics of {run.lines} steps, more than the {recipe.steps} asked for")
    return run.lines


def newest(recipe: Recipe) -> int:
    """The steps of its newest checkpoint. Raises ValueError if its folder holds another run, or a longer one."""
    run = RunDir(recipe.output_dir)
    if not (run.checkpoints() or run.lines):
        return 0
    run.check_resume(recipe.steps)
    same_recipe(run.path, renamed.recipe(load_yaml(run.path / "recipe.yaml")), recipe.record())
    return max(map(steps_of, run.checkpoints()), default=0)


def places_for(recipes: Sequence[Recipe], left: int, jobs: int | None) -> list[Slot]:
    """For so many of these that are left."""
    return slots(recipes, left, jobs, cores(), visible(os.environ, torch.cuda.device_count()))


def _headline(recipes: Sequence[Recipe], left: Sequence[Recipe], places: Sequence[Slot], folder: Path) -> str:
    done = len(recipes) - len(left)
    threads = f"{places[0].threads} thread{'s' if places[0].threads > 1 else ''}"
    how = f"{len(places)} at once with {threads} each" if left else "nothing to do"
    count = f"{len(recipes)} run{'s' if len(recipes) > 1 else ''}"
    return f"{folder}: {count}, {done} of them done; {how}"
