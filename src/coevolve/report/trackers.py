"""Experiment trackers, as callbacks of a training: each step's numbers, and tables of dialogues on held-out problems.

Nothing is imported unless the recipe's ``report_to`` asks for it.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.recipe.inputs import did_you_mean
from coevolve.report.wording import table_rows

NONE = "none"
_PROJECT = "coevolve"
_IDENTITY = "coevolve_id"

_COLUMNS = ("step", "problem", "data", "turn", "role", "policy", "heard", "text", "reward")
_TABLE = "dialogues"


@dataclass(frozen=True)
class Tracker:
    """One that is open. numbers: takes a step and its values by name; table: steps learnt, and rows of ``_COLUMNS``."""

    name: str
    numbers: Callable[[int, Mapping[str, float]], None]
    table: Callable[[int, list[list[Any]]], None]

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Mapping[str, Any], **_: Any) -> None:
        numbers = {key: value for key, value in logs.items() if key != "step" and isinstance(value, int | float)}
        self.numbers(logs["step"], numbers)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, *, samples: Sequence[Mapping[str, Any]], **_: Any
    ) -> None:
        self.table(state.global_step, [row for sample in samples for row in _rows(state.global_step, sample)])


Opener = Callable[[Any, Path, Mapping[str, Any]], AbstractContextManager[Tracker]]


@contextmanager
def trackers(names: Sequence[str], run: Path, recipe: Mapping[str, Any]) -> Iterator[list[Tracker]]:
    """Callbacks that send to these trackers, while the context is open.

    A resumed run goes on in the trackers' old runs; numbers of steps that are trained again replace the old ones in
    TensorBoard, are dropped by wandb, and stand beside the old ones in the others. Raises ValueError, before any is
    opened, for an unknown name or a package that is not installed.
    """
    found = [(name, *_package(name)) for name in names]
    with ExitStack() as opened:
        yield [opened.enter_context(use(module, run, recipe)) for _, module, use in found]


def check(names: Sequence[str]) -> None:
    """Raises ValueError for an unknown name or a package that is not installed; opens nothing."""
    for name in names:
        _package(name)


def _package(name: str) -> tuple[Any, Opener]:
    if name not in TRACKERS:
        known = ", ".join((NONE, *TRACKERS))
        raise ValueError(f"report_to: unknown {name!r}{did_you_mean(name, TRACKERS)}; known: {known}")
    module, use = TRACKERS[name]
    try:
        return importlib.import_module(module), use
    except ImportError as error:
        raise ValueError(f"report_to: {name} needs a package: pip install 'coevolve[{name}]' ({error})") from error


@contextmanager
def _tensorboard(module: Any, run: Path, recipe: Mapping[str, Any]) -> Iterator[Tracker]:
    writers: dict[Path, Any] = {}

    def writer(folder: Path, step: int) -> Any:
        if (
            folder not in writers
        ):  # only now is the first step known: what an interrupted run wrote from it on is purged
            writers[folder] = module.SummaryWriter(str(folder), purge_step=step)
        return writers[folder]

    def numbers(step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            writer(run / "tensorboard", step).add_scalar(key, value, step)

    def table(step: int, rows: list[list[Any]]) -> None:
        # A folder of its own: the table after n steps and the numbers of step n, counted from 0, both say n. A run that
        # goes on there keeps the one and purges the others, and a purge is of all that is in a folder.
        writer(run / "tensorboard" / _TABLE, step).add_text(_TABLE, _markdown(rows), step)

    try:
        yield Tracker("tensorboard", numbers, table)
    finally:
        for one in writers.values():
            one.close()


@contextmanager
def _wandb(module: Any, run: Path, recipe: Mapping[str, Any]) -> Iterator[Tracker]:
    settings = {"project": _PROJECT, "name": run.name, "dir": str(run), "config": dict(recipe)}
    with _session("wandb", module, settings | {"id": _identity(run)}) as tracker:
        yield tracker


@contextmanager
def _trackio(module: Any, run: Path, recipe: Mapping[str, Any]) -> Iterator[Tracker]:
    settings = {"project": _PROJECT, "name": f"{run.name}-{_identity(run)}", "config": dict(recipe)}
    with _session("trackio", module, settings) as tracker:
        yield tracker


@contextmanager
def _session(name: str, module: Any, settings: Mapping[str, Any]) -> Iterator[Tracker]:
    """The init, log, finish that wandb and trackio share."""
    session = module.init(**settings, resume="allow")

    def table(step: int, rows: list[list[Any]]) -> None:
        session.log({_TABLE: module.Table(columns=list(_COLUMNS), data=rows)}, step=step)

    try:
        yield Tracker(name, lambda step, values: session.log(dict(values), step=step), table)
    finally:
        session.finish()


@contextmanager
def _mlflow(module: Any, run: Path, recipe: Mapping[str, Any]) -> Iterator[Tracker]:
    module.set_experiment(_PROJECT)
    identity = _identity(run)
    query = {"experiment_names": [_PROJECT], "filter_string": f"tags.{_IDENTITY} = '{identity}'"}
    before = module.search_runs(**query, output_format="list")
    settings = {"run_id": before[0].info.run_id} if before else {"run_name": run.name, "tags": {_IDENTITY: identity}}

    def table(step: int, rows: list[list[Any]]) -> None:
        columns = zip(*rows, strict=True) if rows else ([] for _ in _COLUMNS)
        module.log_table(dict(zip(_COLUMNS, map(list, columns), strict=True)), f"{_TABLE}/step-{step}.json")

    with module.start_run(**settings):
        module.log_dict(dict(recipe), "recipe.yaml")
        yield Tracker("mlflow", lambda step, values: module.log_metrics(dict(values), step=step), table)


def _identity(run: Path) -> str:
    """A name for this run that survives a resume and that no other run has."""
    file = run / "tracker-id"
    if not file.exists():
        run.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _rows(step: int, sample: Mapping[str, Any]) -> Iterator[list[Any]]:
    """A dialogue, a row for each turn: what it heard are numbers of turns, and notes."""
    data = "\n".join(f"{key}: {value}" for key, value in sample["data"].items())
    for number, turn in enumerate(sample["turns"]):
        heard = "\n".join(f"turn {part}" if isinstance(part, int) else part for part in turn["heard"])
        said = (number, turn["role"], turn["policy"], heard, turn["text"], turn["reward"])
        yield [step, sample["problem"], data, *said]


def _markdown(rows: Sequence[Sequence[Any]]) -> str:
    return table_rows(map(_cell, line) for line in (_COLUMNS, ["---"] * len(_COLUMNS), *rows))


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", "<br>")


TRACKERS: dict[str, tuple[str, Opener]] = {
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
    "wandb": ("wandb", _wandb),
    "trackio": ("trackio", _trackio),
    "mlflow": ("mlflow", _mlflow),
}
"""The package to import, and what opens it."""
