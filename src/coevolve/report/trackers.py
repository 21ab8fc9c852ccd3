"""Experiment trackers, as callbacks of a training: each step's numbers, and tables of dialogues on held-out problems.

A tracker's package is imported only if the recipe's ``report_to`` names it.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.names import did_you_mean
from coevolve.report.wording import table_cell, table_rows

NONE = "none"
_PROJECT = "coevolve"
_IDENTITY = "coevolve_id"

_COLUMNS = ("step", "problem", "data", "turn", "role", "policy", "heard", "text", "reward")
_TABLE = "dialogues"


@dataclass(frozen=True)
class Tracker:
    """An open tracker. numbers: takes a step and its values by name; table: takes the number of steps learnt and rows
    of ``_COLUMNS``."""

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
    """Open these trackers as callbacks, while the context is open.

    A resumed run continues the trackers' old runs; numbers of steps that are trained again replace the old ones in
    TensorBoard, are dropped by wandb, and are added to the old ones in the others. Raises ValueError, before any is
    opened, for an unknown name or a package that is not installed.
    """
    found = [(name, *_package(name)) for name in names]
    with ExitStack() as opened:
        yield [opened.enter_context(use(module, run, recipe)) for _, module, use in found]


def check(names: Sequence[str]) -> None:
    """Raise ValueError for an unknown name or a package that is not installed; opens no tracker."""
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
    reached: dict[Path, int] = {}

    def writer(folder: Path, step: int) -> Any:
        # Created once its first step is known: what an interrupted run logged from that step on is purged, and so is
        # what is trained again after lost ranks.
        if folder in reached and step <= reached[folder]:
            writers.pop(folder).close()
        if folder not in writers:
            writers[folder] = module.SummaryWriter(str(folder), purge_step=step)
        reached[folder] = step
        return writers[folder]

    def numbers(step: int, values: Mapping[str, float]) -> None:
        board = writer(run / "tensorboard", step)
        for key, value in values.items():
            board.add_scalar(key, value, step)

    def table(step: int, rows: list[list[Any]]) -> None:
        # A folder of its own: the table after n steps and the numbers of step n, counted from 0, are both logged at n.
        # A run that resumes at n must keep the table and purge the numbers, but a purge clears everything in a folder.
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
    """Open a tracker by the calls init, log and finish, which wandb and trackio share."""
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
    """Return a unique name for this run, which is kept in a file, so that a resumed run has it too."""
    file = run / "tracker-id"
    if not file.exists():
        run.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _rows(step: int, sample: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield a row for each turn of a dialogue; its column ``heard`` has the numbers of turns, and notes."""
    data = "\n".join(f"{key}: {value}" for key, value in sample["data"].items())
    for number, turn in enumerate(sample["turns"]):
        heard = "\n".join(f"turn {part}" if isinstance(part, int) else part for part in turn["heard"])
        said = (number, turn["role"], turn["policy"], heard, turn["text"], turn["reward"])
        yield [step, sample["problem"], data, *said]


def _markdown(rows: Sequence[Sequence[Any]]) -> str:
    return table_rows(map(table_cell, line) for line in (_COLUMNS, ["---"] * len(_COLUMNS), *rows))


TRACKERS: dict[str, tuple[str, Opener]] = {
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
    "wandb": ("wandb", _wandb),
    "trackio": ("trackio", _trackio),
    "mlflow": ("mlflow", _mlflow),
}
"""Name of a tracker -> the module to import, and the context manager that opens the tracker."""
