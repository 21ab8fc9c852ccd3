"""Training progress: one live line on a terminal; elsewhere ten plain lines, and at least one per minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coevolve.console import console

Listener = Callable[[Mapping[str, Any]], None]

_LINES = 10  # per training, spread evenly
_SILENCE = 60.0  # seconds without a line after which the next step is printed

_SHOWN = {"reward": "reward", "kl": "KL", "objective": "objective", "tokens_per_second": "tok/s"}


@contextmanager
def progress(steps: int, out: Console | None = None) -> Iterator[Listener]:
    """Yield a listener that shows the progress of ``steps`` steps on ``out``, by default standard output."""
    out = out or console()
    if not out.is_terminal:
        yield _plain(steps, out)
        return
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[shown]}", markup=False))
    with Progress(*columns, TextColumn("ETA"), TimeRemainingColumn(), console=out) as bar:
        task = bar.add_task("training", total=steps, shown="loading")
        yield lambda line: bar.update(task, completed=line["step"] + 1, shown=_numbers(line))


def _plain(steps: int, out: Console) -> Listener:
    told: list[tuple[int, float]] = []  # the first step (from which time is counted) and the last one printed
    every = -(-steps // _LINES)

    def show(line: Mapping[str, Any]) -> None:
        done, now = int(line["step"]) + 1, time.monotonic()
        if told and done % every and done < steps and now - told[-1][1] < _SILENCE:
            return
        told[1:] = [(done, now)]
        elapsed = done - told[0][0]
        left = f"  ETA {(now - told[0][1]) / elapsed * (steps - done):.0f} s" if elapsed else ""
        out.print(f"step {done}/{steps}  {_numbers(line)}{left}", highlight=False, soft_wrap=True)

    return show


def _numbers(line: Mapping[str, Any]) -> str:
    values = {label: line[key] for key, label in _SHOWN.items() if key in line}
    return "  ".join(
        f"{label} {value:.0f}" if value >= 1000 else f"{label} {value:.3g}" for label, value in values.items()
    )
