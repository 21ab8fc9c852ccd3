"""A run directory read back: which checkpoint, and the recipe that it was trained by."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from coevolve.recipe import renamed
from coevolve.recipe.inputs import load_yaml, validate
from coevolve.recipe.schema import Recipe
from coevolve.recipe.trust import need_trust
from coevolve.runs.folder import RunDir
from coevolve.runs.lock import alone
from coevolve.runs.signature import not_own


def checkpoint_of(run: RunDir, step: int | None) -> Path:
    """The folder of the newest checkpoint, or of this one. Raises ValueError for no run, and for no such checkpoint."""
    if not (run.path / "recipe.yaml").is_file():
        raise ValueError(
            f"{run.path} is no run: it has no recipe.yaml; name the folder that `coevolve train` wrote; "
            "eval and advise take a recipe, too: a .yaml, or a name that `coevolve recipes` lists"
        )
    found = {step_of(folder): folder for folder in run.checkpoints()}
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
    """Raises ValueError naming a policy whose weights are not in the run: its engine has them."""
    if gone := [name for name, spec in recipe.policies.items() if spec.elsewhere]:
        raise ValueError(
            f"{run.path}: the weights of policy {gone[0]!r} are not in the run, its own engine has them; such a team "
            "can be trained and evaluated only"
        )


@contextmanager
def kept(folder: Path) -> Iterator[Path]:
    """A checkpoint under links of its own, since a run that still trains deletes its old ones; the checkpoint itself
    where there can be no links."""
    with ExitStack() as stack:
        there = folder
        with suppress(OSError):
            room = Path(tempfile.mkdtemp(prefix=".reading-", suffix=".tmp", dir=folder.parent))
            stack.callback(shutil.rmtree, room, ignore_errors=True)
            stack.enter_context(alone(room))  # or who goes on with the run would take it for a kill's
            shutil.copytree(folder, room / folder.name, copy_function=_linked)
            there = room / folder.name
        yield there


def _linked(file: str, there: str) -> None:
    os.link(os.path.realpath(file), there)


def step_of(folder: Path) -> int:
    """How many steps a checkpoint's folder has behind it."""
    return int(folder.name.removeprefix("checkpoint-"))


def recipe_of(run: RunDir, trust_code: bool = False) -> Recipe:
    """What the run was trained by, to be built again and played; callbacks of its training are left out.

    trust_code: whatever code it names may be run, whoever made the run. Raises ValueError if it names some and is not
    this user's own (see ``signature``), and if it was trained from Python, which no file describes.
    """
    file = run.path / "recipe.yaml"
    recorded = load_yaml(file)
    if "roles" not in recorded:  # see ``Trainer.identity``
        raise ValueError(
            f"{run.path} was trained from Python, and no file says how to build its team again; evaluate it there with "
            "coevolve.evaluate.evaluate; the folders checkpoint-N/agents/<policy> load with transformers as they are"
        )
    recipe = validate(Recipe, renamed.recipe(recorded), str(file)).model_copy(update={"callbacks": []})
    if not trust_code and (why := not_own(run.path)):
        need_trust(run.path, recipe.record(), why)
    return recipe
