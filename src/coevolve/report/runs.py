"""The runs of a report, read from their directories, and the groups of runs that are seeds of one recipe."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coevolve.files import shown
from coevolve.recipe.inputs import load_yaml
from coevolve.runs import shapes
from coevolve.runs.folder import RunDir, gap, is_checkpoint, read_lines
from coevolve.runs.identity import free_keys, ordered
from coevolve.runs.signature import check_stays


@dataclass(frozen=True)
class Run:
    """A run, as read from its directory. name: of the folder. lines: its metrics, one mapping per step."""

    path: Path
    name: str
    recipe: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]

    @property
    def seed(self) -> int:
        return int(self.recipe.get("seed", 0))

    def column(self, key: str) -> list[float | None]:
        """Return a metric by step; None where a step lacks it."""
        return [line.get(key) for line in self.lines]

    @cached_property
    def keys(self) -> list[str]:
        """The numeric metrics that any step has, in the order in which they first appear."""
        found = dict.fromkeys(key for line in self.lines for key in line)
        return [key for key in found if key not in ("step", "cast")]

    @cached_property
    def policies(self) -> list[str]:
        """The policies with metrics that played a role at some step, or all where no cast was recorded. A critic or a
        judge plays none, and its gradients and updates are on a scale of their own."""
        played = {policy for _, policy in self.seats}
        return [policy for policy in self.learning if policy in played or not played]

    @cached_property
    def learning(self) -> list[str]:
        """All policies with metrics of their own, those that play no role among them."""
        return list(dict.fromkeys(key.split("/")[1] for key in self.keys if key.startswith("agents/")))

    @cached_property
    def seats(self) -> set[tuple[str, str]]:
        """All pairs of a role and a policy that played it."""
        return {seat for line in self.lines for seat in line.get("cast", {}).items()}

    @cached_property
    def openers(self) -> set[str]:
        """The roles that speak first in the run's dialogues on held-out problems."""
        return {turns[0]["role"] for turns in self._dialogues if turns}

    @cached_property
    def listeners(self) -> set[str]:
        """The roles that heard something in any of these dialogues."""
        return {turn["role"] for turns in self._dialogues for turn in turns if turn["heard"]}

    @cached_property
    def _dialogues(self) -> list[list[dict[str, Any]]]:
        return [record["turns"] for record in read_lines(RunDir(self.path).samples)]

    def written(self, name: str) -> Any:
        """Return the content of a JSON file of the run, such as ``eval.json``; None if it does not exist."""
        file = self.path / name
        return shapes.read(file) if file.is_file() else None


@dataclass(frozen=True)
class Group:
    """Runs whose recipes differ in the seed only, ordered by it, and the group's name in comparisons."""

    name: str
    runs: Sequence[Run]


def find(paths: Iterable[Path]) -> list[Run]:
    """Return the runs at these paths: run directories, or folders (of a sweep) with run directories in them.

    Runs in a folder that have not finished a step, or pre-train a model, are left out. Raises ValueError for a path
    without runs, for a run directory of such a run, and for a folder with only such runs.
    """
    runs: dict[Path, Run] = {}
    for path in paths:
        one = RunDir(path).metrics.is_file()
        inside = [path] if one else sorted(file.parent for file in path.glob("*/metrics.jsonl"))
        if not inside:
            if is_checkpoint(path):
                raise ValueError(f"{path} is a checkpoint, which has no metrics; name its run, {path.parent}")
            raise ValueError(f"{path} is no run directory and has none in it: no metrics.jsonl")
        if not (inside := [folder for folder in inside if one or not _pretrains(folder)]):
            raise ValueError(f"{path}: the runs in it pre-train models, of which there is no report")
        begun = [folder for folder in inside if one or read_lines(RunDir(folder).metrics)]
        if not begun:
            raise ValueError(f"{path}: none of the runs in it has metrics yet: they have not finished a step")
        for folder in begun:
            runs.setdefault(folder.resolve(), read(folder))
    return list(runs.values())


def _pretrains(folder: Path) -> bool:
    """Return whether a folder is a run of `coevolve pretrain` that has begun; only its recipes have a ``kind``."""
    file, metrics = folder / "recipe.yaml", RunDir(folder).metrics
    return metrics.is_file() and metrics.stat().st_size > 0 and file.is_file() and "kind" in load_yaml(file)


def read(folder: Path) -> Run:
    """Read a run. Raises ValueError if it has not finished a step, pre-trains a model, or is another user's and has
    links to files outside of it."""
    check_stays(folder, folder.glob("*.*"))
    if _pretrains(folder):
        raise ValueError(f"{folder} pre-trains a model, of which there is no report; its metrics.jsonl has the loss")
    lines = read_lines(RunDir(folder).metrics)
    if not lines:
        raise ValueError(f"{folder} has no metrics yet: it has not finished a step")
    if (missing := gap(lines, lines[-1]["step"] + 1)) is not None:
        said = f"{RunDir(folder).metrics} lacks step {missing}"
        warnings.warn(f"{said}; bring it back, or the report is of the other steps only", stacklevel=2)
    file = folder / "recipe.yaml"
    recipe = load_yaml(file) if file.is_file() else {}
    if not isinstance(recipe.get("seed", 0), int):
        raise ValueError(f"{file}: seed is {shown(recipe['seed'])}; want a whole number")
    return Run(folder, folder.resolve().name, recipe, lines)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Group the runs by recipe, in the order given; a group's name tells what sets its recipe apart from the others."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(_identity(run), sort_keys=True, default=str), []).append(run)
    groups = [sorted(group, key=lambda run: run.seed) for group in found.values()]
    return [Group(name, group) for name, group in zip(_names(groups), groups, strict=True)]


def _identity(run: Run) -> dict[str, Any]:
    """Return the settings of a run in which seeds of one experiment do not differ."""
    settings = ordered(run.recipe)
    free = free_keys(settings) | {"seed"}
    return {key: value for key, value in settings.items() if key not in free and value is not None}


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return the groups' names: the folder's name without the seed and, where two groups share it, the settings that
    differ: those that all recipes have or, if there are none, all."""
    stems = [_stem(group[0]) for group in groups]
    settings = [_identity(group[0]) for group in groups]
    keys = dict.fromkeys(key for one in settings for key in one)
    differ = [key for key in keys if len({json.dumps(one.get(key), default=str) for one in settings}) > 1]
    differ = [key for key in differ if all(key in one for one in settings)] or differ
    names = []
    for stem, one in zip(stems, settings, strict=True):
        shown = [f"{_called(key)}={one.get(key)}" for key in differ]
        names.append(f"{stem} {' '.join(shown)}" if stems.count(stem) > 1 else stem)
    return names


def _called(key: str) -> str:
    """Return the short name of a key: ``eta`` for ``algorithm.eta``, and ``algorithm`` for ``algorithm.name``."""
    before, _, last = key.rpartition(".")
    return before.rpartition(".")[2] if last == "name" and before else last


def _stem(run: Run) -> str:
    """Return a run's name without its seed: ``cory-imdb`` for ``cory-imdb-3`` with seed 3."""
    for end in (f"-{run.seed}", f"-s{run.seed}", f"-seed={run.seed}", f" seed={run.seed}"):
        if run.name.endswith(end):
            return run.name.removesuffix(end)
    return run.name
