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
from coevolve.report.page.episodes import value
from coevolve.runs.folder import read_lines

_DATA = 80  # most characters of a problem's columns that are shown
_WIDTH = 110  # of the output if it is not a terminal


def show_samples(run: Path, out: Console | None = None) -> None:
    """Print the first and the last dialogue on one problem of ``run/samples.jsonl``, the one that the report opens on.

    Prints nothing if the file is empty. Raises ValueError if there is no such file.
    """
    file = Path(run) / "samples.jsonl"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: the run wrote no samples")
    rows = read_lines(file)
    if not rows:
        return  # samples: 0
    start, end = min(row["step"] for row in rows), max(row["step"] for row in rows)
    first = [row for row in rows if row["step"] == start]
    last = {(row["problem"], row["member"]): row for row in rows if row["step"] == end}
    pairs = [(row, last.get((row["problem"], row["member"]))) for row in first]
    # The median of the change, as in report/page/web/overview.js: neither the best nor the worst.
    pairs.sort(key=lambda pair: (value(pair[1]) if pair[1] else 0.0) - value(pair[0]))
    before, after = pairs[len(pairs) // 2]
    (out or console(_WIDTH)).print(_table(before, after if end > start else None))


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
    """Return ``pioneer (ann, +0.42): TEXT``, below the last note that the role got; empty past the dialogue's end."""
    if place >= len(turns):
        return Text()
    turn = turns[place]
    paid = "" if turn["reward"] is None else f", {turn['reward']:+.2f}"
    notes = [part for part in turn["heard"] if isinstance(part, str) and part]
    note = f"[{' '.join(notes[-1].split())}]\n" if notes else ""
    said = " ".join(turn["text"].split())
    return Text.assemble((note, "dim"), (f"{turn['role']} ({turn['policy']}{paid}): ", "bold"), said)
