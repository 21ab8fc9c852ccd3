"""Progress on the terminal: one live line, or one plain line a step where the output is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coevolve.console import console

Listener = Callable[[Mapping[str, Any]], None]

_SHOWN = {"reward": "reward", "kl": "KL", "objective": "r-eta*KL", "tokens_per_second": "tok/s"}


@contextmanager
def progress(steps: int, out: Console | None = None) -> Iterator[Listener]:
    """A listener that shows each step of ``steps``; out is standard output unless given."""
    out = out or console()
    if not out.is_terminal:
        yield _plain(steps, out)
        return
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[shown]}", markup=False))
    with Progress(*columns, TextColumn("ETA"), TimeRemainingColumn(), console=out) as bar:
        task = bar.add_task("training", total=steps, shown="loading")
        yield lambda line: bar.update(task, completed=line["step"] + 1, shown=_numbers(line))


def _plain(steps: int, out: Console) -> Listener:
    began: list[tuple[int, float]] = []

    def show(line: Mapping[str, Any]) -> None:
        done, now = int(line["step"]) + 1, time.monotonic()
        if not began:  # the first step of this process says nothing about the time between steps
            began.append((done, now))
        elapsed = done - began[0][0]
        left = f"  ETA {(now - began[0][1]) / elapsed * (steps - done):.0f} s" if elapsed else ""
        out.print(f"step {done}/{steps}  {_numbers(line)}{left}", highlight=False, soft_wrap=True)

    return show


def _numbers(line: Mapping[str, Any]) -> str:
    values = {label: line[key] for key, label in _SHOWN.items() if key in line}
    return "  ".join(
        f"{label} {value:.0f}" if value >= 1000 else f"{label} {value:.3g}" for label, value in values.items()
    )
