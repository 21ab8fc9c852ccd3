"""Experiment trackers. Nothing is imported unless the recipe's ``report_to`` asks for it."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from coevolve.recipe.inputs import did_you_mean

Listener = Callable[[Mapping[str, Any]], None]
_PROJECT = "coevolve"


def tracker(name: str, run: Path, recipe: Mapping[str, Any]) -> AbstractContextManager[Listener]:
    """A listener that sends each step's numbers to this tracker while the context is open.

    A resumed run goes on in the tracker's old run; steps that are trained again replace the old ones in TensorBoard and
    are dropped by the others. Raises ValueError, at once, for an unknown name or a package that is not installed.
    """
    if name not in TRACKERS:
        raise ValueError(f"report_to: unknown {name!r}{did_you_mean(name, TRACKERS)}; known: {', '.join(TRACKERS)}")
    module, use = TRACKERS[name]
    if not module:
        return use(None, run, recipe)
    try:
        return use(importlib.import_module(module), run, recipe)
    except ImportError as error:
        raise ValueError(f"report_to: {name} needs a package: pip install 'coevolve[{name}]' ({error})") from error


@contextmanager
def _none(_: Any, run: Path, recipe: Mapping[str, Any]) -> Iterator[Listener]:
    yield lambda line: None


@contextmanager
def _tensorboard(module: Any, run: Path, recipe: Mapping[str, Any]) -> Iterator[Listener]:
    writers: list[Any] = []

    def send(line: Mapping[str, Any]) -> None:
        if not writers:  # only now is the first step known: what an interrupted run wrote beyond it is purged
            writers.append(module.SummaryWriter(str(run / "tensorboard"), purge_step=line["step"]))
        for key, value in _numbers(line).items():
            writers[0].add_scalar(key, value, line["step"])

    try:
        yield send
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def _wandb(module: Any, run: Path, recipe: Mapping[str, Any]) -> Iterator[Listener]:
    settings = {"project": _PROJECT, "name": run.name, "dir": str(run), "config": dict(recipe)}
    with _session(module, run, settings | {"id": _identity(run)}) as send:
        yield send


@contextmanager
def _trackio(module: Any, run: Path, recipe: Mapping[str, Any]) -> Iterator[Listener]:
    settings = {"project": _PROJECT, "name": f"{run.name}-{_identity(run)}", "config": dict(recipe)}
    with _session(module, run, settings) as send:
        yield send


@contextmanager
def _session(module: Any, run: Path, settings: Mapping[str, Any]) -> Iterator[Listener]:
    """The init, log, finish that wandb and trackio share."""
    session = module.init(**settings, resume="allow")
    try:
        yield lambda line: session.log(_numbers(line), step=line["step"])
    finally:
        session.finish()


def _identity(run: Path) -> str:
    """A name for this run that survives a resume and that no other run has."""
    file = run / "tracker-id"
    if not file.exists():
        run.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in line.items() if key != "step" and isinstance(value, int | float)}


TRACKERS: dict[str, tuple[str, Callable[..., AbstractContextManager[Listener]]]] = {
    "none": ("", _none),
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
    "wandb": ("wandb", _wandb),
    "trackio": ("trackio", _trackio),
}
