"""The pool of a sweep's processes, as many at once as there are slots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.faults import one_line
from coevolve.files import check_folder
from coevolve.models.spec import asked_of
from coevolve.recipe.inputs import dump
from coevolve.recipe.schema import Recipe
from coevolve.runs import signature
from coevolve.runs.durable import write_text
from coevolve.runs.folder import RunDir
from coevolve.runs.lock import alone
from coevolve.sweep.slots import Slot

LOG = "train.log"
"""The file in a run's folder with the output of its processes."""

_POLL = 0.3  # seconds between two looks at the processes

Watch = Callable[[Sequence[Recipe], Mapping[Path, str | None]], None]
"""A callback: (recipes of the runs under way, folder -> why it failed or None, of all runs that have ended)."""

Stage = Callable[[Recipe, Slot, int], "subprocess.Popen[bytes]"]
"""A function that starts a process for a run, such as ``train``. The number is a file descriptor that the process keeps
open as long as it lives."""


@dataclass(frozen=True)
class _Running:
    recipe: Recipe
    slot: Slot
    process: subprocess.Popen[bytes]
    later: Sequence[Stage]


def train_all(recipes: Sequence[Recipe], slots: Sequence[Slot], lock: int, watch: Watch) -> dict[Path, str]:
    """Train each recipe in its folder, or resume there; see ``run_all``."""
    return run_all([(recipe, [train]) for recipe in recipes], slots, lock, watch)


def run_all(
    runs: Sequence[tuple[Recipe, Sequence[Stage]]], slots: Sequence[Slot], lock: int, watch: Watch
) -> dict[Path, str]:
    """Run the stages of each recipe one after the other in one slot; returns folder -> reason, of runs that failed or
    are in use. A stage that fails is the run's last.

    lock: the file descriptor for the stages. The processes end with this call, however it ends, even if this process is
    killed (``child``).
    """
    waiting, free = [*runs], [*slots]
    running: list[_Running] = []
    ended: dict[Path, str | None] = {}

    def begin(recipe: Recipe, stages: Sequence[Stage], slot: Slot) -> None:
        try:
            running.append(_Running(recipe, slot, stages[0](recipe, slot, lock), stages[1:]))
        except (ValueError, OSError) as error:  # another training is in the folder, or it cannot be written
            ended[recipe.output_dir] = one_line(error)
            free.append(slot)

    def fill() -> None:
        while waiting and free:
            begin(*waiting.pop(0), free.pop(0))

    try:
        while waiting or running:
            fill()
            time.sleep(_POLL)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                if one.later and not one.process.returncode:
                    begin(one.recipe, one.later, one.slot)
                else:
                    ended[one.recipe.output_dir] = _why(one)
                    free.append(one.slot)
            fill()  # before ``watch``, which may take its time
            watch([one.recipe for one in running], ended)
    finally:
        _stop(running)
    return {run: why for run, why in ended.items() if why is not None}


def train(recipe: Recipe, slot: Slot, lock: int) -> subprocess.Popen[bytes]:
    """Start the training of a recipe in its folder, or resume it there. Raises ValueError or OSError for a folder that
    is in use, or cannot be written."""
    run = recipe.output_dir
    check_folder(run, "output_dir")
    # The run reads the recipe that was checked, not the file, which may have been edited meanwhile.
    record = recipe.record()
    if recipe.learner is None:  # another learner decides on its threads and processes itself
        # The runs are processes of the sweep already, so they start no workers unless the recipe asks for them.
        record["workers"] = False if recipe.workers == "auto" else recipe.workers
        record["threads"] = slot.threads_of(recipe)
    # The compute path follows from the recipe, not from the number of cores that are left for each run.
    for name, spec in recipe.policies.items():
        record["policies"][name]["compute"] = asked_of(spec.compute, recipe.threads)
    with alone(run):  # released before the training starts, which takes the lock itself
        if RunDir(run).begun and not RunDir(run).checkpoints():  # begins anew: nothing to resume from
            RunDir(run).truncate(0)
        _write_recipe(run, record)
    resume = ["--resume"] if RunDir(run).begun else []
    return start(["train", str(run / "recipe.yaml"), *resume], recipe, slot, lock)


def start(words: Sequence[str], recipe: Recipe, slot: Slot, lock: int) -> subprocess.Popen[bytes]:
    """Start a command of ``coevolve`` for a run, on the GPU of its slot, with its output in ``LOG``."""
    with (recipe.output_dir / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "coevolve.sweep.child", *words],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **slot.environment(recipe)},
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C in the terminal reaches the sweep only, which then ends its processes
        )


def _write_recipe(run: Path, record: Mapping[str, Any]) -> None:
    """Write the recipe that the training reads. A run of this user's stays signed: the training, which signs it anew,
    may be stopped before that. Data files keep the checksums of before, for the training to tell which changed."""
    own, text = not signature.not_own(run), dump(record)
    write_text(run / "recipe.yaml", text)
    if own and (signed := signature.signature(run, text, (signature.checksums(record)[0], {}))):
        write_text(run / signature.FILE, signed)


def _stop(running: Sequence[_Running]) -> None:
    for one in running:
        assert one.process.stdin is not None
        one.process.stdin.close()  # interrupts the process, see ``child``
    for one in running:
        one.process.wait()


def _why(one: _Running) -> str | None:
    """Return the last line that a failed process printed, or the signal that killed it; None if it did not fail."""
    code = one.process.returncode
    if code == 0:
        return None
    if code < 0:
        return f"killed by signal {-code} ({signal.strsignal(-code)})"
    said: list[str] = []
    with suppress(OSError):  # its folder may be gone
        said = (one.recipe.output_dir / LOG).read_text("utf-8", "replace").split("\n")
    return next((line for line in reversed(said) if line.strip()), f"exit code {code}")
