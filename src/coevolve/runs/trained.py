"""Reading a run directory back: its checkpoints, and the recipe that it was trained with."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from coevolve.learners import LEARNERS
from coevolve.recipe.inputs import load_yaml
from coevolve.recipe.schema import Recipe
from coevolve.recipe.trust import need_trust
from coevolve.recipe.validate import validate
from coevolve.runs.folder import RunDir, is_checkpoint, steps_of
from coevolve.runs.lock import alone
from coevolve.runs.signature import not_own


def checkpoint_of(run: RunDir, step: int | None) -> Path:
    """Return the folder of the checkpoint of this step (None: the newest). Raises ValueError if there is none."""
    if is_checkpoint(run.path):
        raise ValueError(
            f"{run.path} is a checkpoint of a run; name {run.path.parent}, and --checkpoint {steps_of(run.path)}"
        )
    if not (run.path / "recipe.yaml").is_file():
        why = "it has no recipe.yaml" if run.path.is_dir() else "there is no such folder"
        raise ValueError(
            f"{run.path} is no run: {why}; name the folder that `coevolve train` wrote; "
            "eval and advise take a recipe, too: a .yaml, or a name that `coevolve recipes` lists"
        )
    found = {steps_of(folder): folder for folder in run.checkpoints()}
    if not found:
        if run.lost_checkpoints:
            raise ValueError(
                f"{run.path} has no checkpoint any more, only the metrics of {run.lines} steps; bring one back, or "
                "train it anew in another folder"
            )
        raise ValueError(f"{run.path} has no checkpoint yet; train on with --resume")
    if step is not None and step not in found:
        raise ValueError(f"{run.path} has no checkpoint of step {step}; there are {', '.join(map(str, found))}")
    return found[max(found) if step is None else step]


def check_whole(run: RunDir, recipe: Recipe) -> None:
    """Raise ValueError naming a policy whose weights are not in the run, because only its engine has them."""
    if gone := [name for name, spec in recipe.policies.items() if spec.elsewhere]:
        raise ValueError(
            f"{run.path}: the weights of policy {gone[0]!r} are not in the run, its own engine has them; such a team "
            "can be trained and evaluated only"
        )


@contextmanager
def kept(folder: Path) -> Iterator[Path]:
    """Keep a checkpoint readable inside the context, since a run that still trains deletes its old ones.

    Yields a copy made of hard links, or the checkpoint itself where there can be no links. Messages of a ValueError
    raised inside name the checkpoint, not the copy. Raises ValueError if it was deleted before there was a copy."""
    with ExitStack() as stack:
        there = folder
        with suppress(OSError):
            room = Path(tempfile.mkdtemp(prefix=".reading-", suffix=".tmp", dir=folder.parent))
            stack.callback(shutil.rmtree, room, ignore_errors=True)
            stack.enter_context(alone(room))  # or a resumed run would delete it as left by a kill
            shutil.copytree(folder, room / folder.name, copy_function=_linked)
            there = room / folder.name
        if there == folder and not folder.exists():
            raise ValueError(f"{folder} was deleted meanwhile by the training that goes on there; try again")
        try:
            yield there
        except ValueError as error:
            if str(there) in (said := str(error)) and there != folder:
                raise ValueError(said.replace(str(there), str(folder))) from error
            raise


def _linked(file: str, there: str) -> None:
    os.link(os.path.realpath(file), there)


def recipe_of(run: RunDir, trust_code: bool = False) -> Recipe:
    """Return the recipe that the run was trained with, to build and play its team again: without its callbacks, and
    with ranks on this machine, wherever they were.

    trust_code: any code that the recipe names may be run, whoever made the run. Raises ValueError if it names code and
    the run is not this user's own (see ``signature``), or if it was trained from Python, which no file describes.
    """
    file = run.path / "recipe.yaml"
    recorded = load_yaml(file)
    if "roles" not in recorded:  # see ``Trainer.identity``
        raise ValueError(
            f"{run.path} was trained from Python, and no file says how to build its team again; evaluate it there with "
            "Trainer.evaluate; the folders checkpoint-N/agents/<policy> load with transformers as they are"
        )
    trained = validate(Recipe, recorded, str(file))
    recipe = trained.model_copy(update={"callbacks": [], "learner": without_cluster(trained.learner)})
    if not trust_code and (why := not_own(run.path)):
        need_trust(run.path, recipe.record(), why)
    return recipe


def without_cluster(learner: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a recipe's learner without the torchrun or the Ray cluster that its ranks were on, and with no more ranks
    than this machine has GPUs, if it has any: a checkpoint loads into any number."""
    if learner is None or learner["name"] not in LEARNERS:
        return learner
    import torch

    ranks = min(learner["ranks"], torch.cuda.device_count() or learner["ranks"])
    return {key: value for key, value in learner.items() if key != "cluster"} | {"ranks": ranks}
