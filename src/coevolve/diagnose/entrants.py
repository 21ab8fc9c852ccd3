"""Loading of trained teams from their runs, several side by side in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.recipe.build import parts
from coevolve.recipe.schema import Recipe
from coevolve.runs import checkpoint
from coevolve.runs.folder import RunDir, is_checkpoint, steps_of
from coevolve.runs.trained import check_whole, checkpoint_of, kept, recipe_of
from coevolve.types import PolicyName, Role


@dataclass(frozen=True)
class Entrant:
    """One team. folder: its checkpoint. prefix: set before its policies' names, so that no other team has the same."""

    label: str
    recipe: Recipe
    folder: Path
    prefix: str = ""

    @property
    def step(self) -> int:
        return steps_of(self.folder)

    @property
    def cast(self) -> dict[Role, PolicyName]:
        """The cast, as at the last step of training before the checkpoint."""
        cast = parts(self.recipe).cast()(max(self.step - 1, 0))
        return {role: self.prefix + name for role, name in cast.items()}

    def load(self, policies: dict[PolicyName, LocalLearner]) -> None:
        """Load the checkpoint's weights into those of these policies that are trainable."""
        for name in self.recipe.policies:
            if (policy := policies[self.prefix + name]).trainable:
                policy.weights.load(self.folder / "agents" / name)


def entrant(run: Path, step: int | None = None, trust_code: bool = False) -> Entrant:
    """Return the team of a run at its newest checkpoint or at this step. trust_code: as in ``recipe_of``.

    Its checkpoint is not verified yet: a training beside may delete it until it is kept (``verified``). Raises
    ValueError if the checkpoint is missing or incomplete, or its code is not trusted.
    """
    folder = checkpoint_of(RunDir(run), step)
    recipe = recipe_of(RunDir(run), trust_code)
    check_whole(RunDir(run), recipe)
    return Entrant(run.resolve().name, recipe, folder)


def others(paths: Sequence[Path], host: Entrant, trust_code: bool = False) -> list[Entrant]:
    """Return the teams of these runs, or checkpoint folders of runs, that are to play with the host.

    Raises ValueError for a team with other roles or another task (it says what differs), for a team given twice, and
    for a host with one role, of which no mixed team can be made.
    """
    if paths and len(host.recipe.roles) == 1:
        raise ValueError(f"--with: this run has one role, {next(iter(host.recipe.roles))}; a mixed team takes two")
    found = []
    for path in paths:
        run, step = (path.parent, steps_of(path)) if is_checkpoint(path) else (path, None)
        one = entrant(run, step, trust_code)
        _check_fits(path, one, host)
        found.append(one)
    teams = [one.folder.resolve() for one in (host, *found)]
    for path, folder in zip(paths, teams[1:], strict=True):
        if teams.count(folder) > 1:
            raise ValueError(f"--with {path}: a team does not meet itself; {folder} is among the teams twice")
    names = Counter(one.label for one in (host, *found))
    labels = [one.label if names[one.label] == 1 else f"{one.label}@{one.step}" for one in found]
    if len({host.label, *labels}) <= len(labels):
        labels = [str(path) for path in paths]
    return [Entrant(label, one.recipe, one.folder, f"{label}/") for label, one in zip(labels, found, strict=True)]


@contextmanager
def verified(one: Entrant) -> Iterator[Entrant]:
    """Keep a team's checkpoint readable inside the context; yields the team with that copy. Raises ValueError if it is
    damaged."""
    with kept(one.folder) as folder:
        checkpoint.verify(folder)
        yield replace(one, folder=folder)


def build(entrants: Sequence[Entrant]) -> dict[PolicyName, LocalLearner]:
    """Build the policies of all teams with the weights they started from; a shared base model is loaded once."""
    specs = {one.prefix + name: spec for one in entrants for name, spec in one.recipe.policies.items()}
    first = entrants[0].recipe
    how: dict[str, Any] = {"steps": first.steps, "seed": first.seed, "workers": first.workers, "threads": first.threads}
    return build_policies(specs, reference=False, critic=False, **how)


def _check_fits(path: Path, one: Entrant, host: Entrant) -> None:
    there, here = list(one.recipe.roles), list(host.recipe.roles)
    if sorted(there) != sorted(here):
        raise ValueError(f"--with {path}: its roles are {', '.join(there)}; those of this run are {', '.join(here)}")
    if one.recipe.task != host.recipe.task:
        raise ValueError(f"--with {path}: its task is {one.recipe.task}; that of this run is {host.recipe.task}")
