"""Dialogues before and after training, side by side, from a run's samples.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coevolve.console import console
from coevolve.runs.folder import read_lines

_DATA = 80  # characters of a problem's columns that are shown
_WIDTH = 110  # where the output is not a terminal, and so has none


def show_samples(run: Path, out: Console | None = None, limit: int = 3) -> None:
    """Print the first ``limit`` problems of ``run/samples.jsonl``, as they were first and last played.

    Raises ValueError if there is no such file.
    """
    file = Path(run) / "samples.jsonl"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: the run wrote no samples")
    rows = read_lines(file)
    out = out or console(_WIDTH)
    steps = sorted({row["step"] for row in rows})
    for row in [row for row in rows if row["step"] in steps[:1]][:limit]:
        last = [r for r in rows if r["step"] == steps[-1] and r["problem"] == row["problem"]]
        out.print(_table(row, last[0] if len(steps) > 1 and last else None))


def _table(first: Mapping[str, Any], last: Mapping[str, Any] | None) -> Table:
    data = ", ".join(f"{key}: {value}" for key, value in first["data"].items())
    table = Table(
        title=f"problem {first['problem']}  {data[:_DATA]}", title_justify="left", box=box.SIMPLE_HEAD, expand=True
    )
    for heading in ("before", "after"):
        table.add_column(heading, ratio=1)
    before, after = first["turns"], last["turns"] if last else []
    for place in range(max(len(before), len(after))):
        table.add_row(_turn(before, place), _turn(after, place))
    return table


def _turn(turns: Sequence[Mapping[str, Any]], place: int) -> Text:
    """``pioneer (ann, +0.42): what it said``, under the last note it was told; empty behind the end of a dialogue."""
    if place >= len(turns):
        return Text()
    turn = turns[place]
    paid = "" if turn["reward"] is None else f", {turn['reward']:+.2f}"
    notes = [part for part in turn["heard"] if isinstance(part, str) and part]
    note = f"[{' '.join(notes[-1].split())}]\n" if notes else ""
    said = " ".join(turn["text"].split())
    return Text.assemble((note, "dim"), (f"{turn['role']} ({turn['policy']}{paid}): ", "bold"), said)
