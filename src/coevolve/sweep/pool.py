"""The pool of training processes, as many at once as there are slots."""

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
"""The file in a run's folder with the output of its training."""

_POLL = 0.3  # seconds between two looks at the processes

Watch = Callable[[Sequence[Recipe], Mapping[Path, str | None]], None]
"""A callback: (recipes of the runs that train now, folder -> why it failed or None, of all runs that have ended)."""


@dataclass(frozen=True)
class _Training:
    recipe: Recipe
    slot: Slot
    process: subprocess.Popen[bytes]


def train_all(recipes: Sequence[Recipe], slots: Sequence[Slot], lock: int, watch: Watch) -> dict[Path, str]:
    """Train each recipe in its folder, or resume there; returns folder -> reason, of runs that failed or are in use.

    lock: a file descriptor that the processes keep open as long as they live. They end with this call, however it
    ends, even if this process is killed (``child``).
    """
    waiting, free = [*recipes], [*slots]
    running: list[_Training] = []
    ended: dict[Path, str | None] = {}

    def fill() -> None:
        while waiting and free:
            recipe = waiting.pop(0)
            try:
                running.append(_start(recipe, free[0], lock))
                del free[0]
            except (ValueError, OSError) as error:  # another training is in the folder, or it cannot be written
                ended[recipe.output_dir] = one_line(error)

    try:
        while waiting or running:
            fill()
            time.sleep(_POLL)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                free.append(one.slot)
                ended[one.recipe.output_dir] = _why(one)
            fill()  # before ``watch``, which may take as long as a run, for instance to evaluate what has ended
            watch([one.recipe for one in running], ended)
    finally:
        _stop(running)
    return {run: why for run, why in ended.items() if why is not None}


def _start(recipe: Recipe, slot: Slot, lock: int) -> _Training:
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
    with (run / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "coevolve.sweep.child", "train", str(run / "recipe.yaml"), *resume],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **slot.environment(recipe)},
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C in the terminal reaches the sweep only, which then ends its processes
        )
    return _Training(recipe, slot, process)


def _write_recipe(run: Path, record: Mapping[str, Any]) -> None:
    """Write the recipe that the training reads. A run of this user's stays signed: the training, which signs it anew,
    may be stopped before that. Data files keep the checksums of before, for the training to tell which changed."""
    own, text = not signature.not_own(run), dump(record)
    write_text(run / "recipe.yaml", text)
    if own and (signed := signature.signature(run, text, (signature.checksums(record)[0], {}))):
        write_text(run / signature.FILE, signed)


def _stop(running: Sequence[_Training]) -> None:
    for one in running:
        assert one.process.stdin is not None
        one.process.stdin.close()  # interrupts the training, see ``child``
    for one in running:
        one.process.wait()


def _why(one: _Training) -> str | None:
    """Return the last line that a failed training printed, or the signal that killed it; None if it did not fail."""
    code = one.process.returncode
    if code == 0:
        return None
    if code < 0:
        return f"killed by signal {-code} ({signal.strsignal(-code)})"
    said: list[str] = []
    with suppress(OSError):  # its folder may be gone
        said = (one.recipe.output_dir / LOG).read_text("utf-8", "replace").split("\n")
    return next((line for line in reversed(said) if line.strip()), f"exit code {code}")
