"""Dialogues before and after training, side by side, from a run's samples.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_DATA = 80  # characters of a problem's columns that are shown
_WIDTH = 110  # where the output is not a terminal, and so has no width


def show_samples(run: Path, console: Console | None = None, limit: int = 3) -> None:
    """Print the first ``limit`` problems of ``run/samples.json``. Raises ValueError if the run has none."""
    file = Path(run) / "samples.json"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: the run wrote no samples")
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    for row in json.loads(file.read_text(encoding="utf-8"))[:limit]:
        console.print(_table(row))


def _table(row: Mapping[str, Any]) -> Table:
    data = ", ".join(f"{key}: {value}" for key, value in row.get("data", {}).items())
    table = Table(
        title=f"problem {row['problem']}  {data[:_DATA]}", title_justify="left", box=box.SIMPLE_HEAD, expand=True
    )
    for heading in ("before", "after"):
        table.add_column(heading, ratio=1)
    before, after = row.get("before", []), row.get("after", [])
    for place in range(max(len(before), len(after))):
        table.add_row(_turn(before, place), _turn(after, place))
    return table


def _turn(turns: Sequence[Mapping[str, Any]], place: int) -> Text:
    """``pioneer (ann, +0.42): what it said``, under the last note it was told; empty behind the end of a dialogue."""
    if place >= len(turns):
        return Text()
    turn = turns[place]
    paid = "" if turn["reward"] is None else f", {turn['reward']:+.2f}"
    note = f"[{' '.join(turn['notes'][-1].split())}]\n" if turn.get("notes") else ""
    said = " ".join(turn["text"].split())
    return Text.assemble((note, "dim"), (f"{turn['role']} ({turn['policy']}{paid}): ", "bold"), said)
