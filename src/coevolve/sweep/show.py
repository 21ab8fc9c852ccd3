"""The output of a sweep in the terminal: progress while it trains, and a table of the results."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from coevolve.files import read_text
from coevolve.recipe.schema import Recipe
from coevolve.report.findings.curves import column, final
from coevolve.report.runs import Group, grouped, read
from coevolve.runs import shapes
from coevolve.runs.folder import RunDir
from coevolve.sweep.pool import Watch

_EVERY = 60.0  # seconds between two plain lines about a run
_SPEED = 600.0  # the time left is estimated from the speed of so many seconds
_TAIL = 1 << 16  # bytes that are read from the end of the metrics, enough for a whole line


@contextmanager
def progress(done: int, total: int, out: Console) -> Iterator[Watch]:
    """Show a live line per run that trains, or print one every minute if the output is no terminal; each run that has
    ended gets a line that stays. done: runs of the total that had ended before."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=out,
        disable=not out.is_terminal,
        speed_estimate_period=_SPEED,
    )
    with bar:
        yield _Watcher(bar, bar.add_task("runs", total=total, completed=done, said=""))


class _Watcher:
    """A ``Watch`` that keeps track of the lines it has printed."""

    def __init__(self, bar: Progress, runs: TaskID) -> None:
        self.bar, self.runs = bar, runs
        self.tasks: dict[Path, TaskID] = {}
        self.spoke: dict[Path, float] = {}
        self.over: set[Path] = set()

    def __call__(self, running: Sequence[Recipe], ended: Mapping[Path, str | None]) -> None:
        for recipe in running:
            self._goes_on(recipe)
        for run in ended.keys() - self.over:
            self.over.add(run)
            self._is_over(run, ended[run])

    def _goes_on(self, recipe: Recipe) -> None:
        run, line = recipe.output_dir, last_metrics(recipe.output_dir)
        steps, said = (line["step"] + 1, _reward(line)) if line else (0, "")
        if run not in self.tasks:  # starts at the steps done before: these say nothing about the speed
            self.tasks[run] = self.bar.add_task(run.name, total=recipe.steps, completed=steps, said=said)
        self.bar.update(self.tasks[run], completed=steps, said=said)
        now = time.monotonic()
        if self.bar.disable and now - self.spoke.get(run, -math.inf) > _EVERY:
            self.spoke[run] = now
            left = self._task(run).time_remaining
            shown = [f"step {steps}/{recipe.steps}", said, f"ETA {left:.0f} s" if left else ""]
            self._print(f"{run.name}: {'  '.join(filter(None, shown))}")

    def _is_over(self, run: Path, why: str | None) -> None:
        if run in self.tasks:
            self.bar.remove_task(self.tasks.pop(run))
        self.bar.advance(self.runs)
        line = last_metrics(run)
        result = f"done  {_reward(line) if line else ''}" if why is None else f"failed  {why}"
        self._print(f"{run.name}: {result}")

    def _task(self, run: Path) -> Task:
        return next(task for task in self.bar.tasks if task.id == self.tasks[run])

    def _print(self, text: str) -> None:
        self.bar.console.print(text, soft_wrap=True, highlight=False)


def last_metrics(run: Path) -> dict[str, Any] | None:
    """Return the last complete line of a run's metrics, without reading the others; None before the first step, and if
    that line is broken, as after a power cut: the training that resumes there writes it again."""
    file = RunDir(run).metrics
    if not file.is_file():
        return None
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - _TAIL))
        whole = lines.read().split(b"\n")[:-1]
    try:
        return shapes.line(read_text(file, whole[-1]), file, "its last line") if whole else None
    except ValueError:
        return None


def _reward(line: Mapping[str, Any]) -> str:
    return f"reward {line['reward']:.3g}" if line.get("reward") is not None else ""


def table(runs: Sequence[Path]) -> Table:
    """Return a table with a row per group of seeds. Final reward: the mean over seeds and the last tenth of the steps,
    with its standard error over seeds; time: the seconds of a run's steps, the mean over seeds."""
    shown = Table(box=box.SIMPLE)
    for title in ("group", "seeds", "final reward", "time per run"):
        shown.add_column(title)
    for group in grouped([read(run) for run in runs]):
        shown.add_row(group.name, ", ".join(str(run.seed) for run in group.runs), *_numbers(group))
    return shown


def _numbers(group: Group) -> tuple[str, str]:
    finals = [value for run in group.runs if math.isfinite(value := final(column(run, "reward")))]
    error = f"{stdev(finals) / math.sqrt(len(finals)):.3f}" if len(finals) > 1 else "-"
    seconds = fmean(sum(value or 0.0 for value in run.column("time/step")) for run in group.runs)
    of = f" (of {len(finals)} seeds)" if len(finals) < len(group.runs) else ""
    return (f"{fmean(finals):.3f} ± {error}{of}" if finals else "-"), f"{seconds:.0f} s"
