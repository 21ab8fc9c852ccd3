"""The diagnostics of a run (``coevolve.diagnose``) as sections of a report and in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from coevolve.console import WIDE, console
from coevolve.report.findings import verdicts
from coevolve.report.runs import Run
from coevolve.report.section import Cell, Plot, Section, Series
from coevolve.report.wording import many

FILE = "diagnostics.json"


@dataclass(frozen=True)
class _Kind:
    """A kind of row: its title, the function that draws its conclusion, and the text if the run has no such rows."""

    title: str
    sentence: Callable[[Sequence[Mapping[str, Any]]], str]
    none: str


_KINDS = {
    "team": _Kind("The team", verdicts.team, ""),
    "alone": _Kind("Each policy alone", verdicts.alone, "The task does not pay a policy of this team by itself."),
    "swap": _Kind("Roles swapped", verdicts.swap, "No other cast can be made of these policies."),
    "messages": _Kind("What is heard", verdicts.messages, "No messages are passed: nobody hears another agent's turn."),
    "influence": _Kind("Who moves the return", verdicts.influence, "There is one agent, and all influence is its own."),
    "cross-play": _Kind(
        "Cross-play",
        verdicts.cross_play,
        "Not played; `coevolve diagnose RUN --with OTHER` mixes this team with others.",
    ),
}

_FIRST = next(iter(_KINDS))
_INTERVALS = (
    ("share", "share_low", "share_high", "share of the influence"),
    ("difference", "low", "high", "difference in return to the team"),
)
"""(value, lower limit, upper limit, title) of what is drawn of a row: the first value that the kind has."""

_COLUMNS = {
    "setting": "setting", "from": "from", "by": "others by", "role": "role", "policy": "policy", "reward": "return",
    "se": "SE", "difference": "difference", "low": "low", "high": "high", "effect": "effect", "share": "share",
    "share_low": "share low", "share_high": "share high",
}  # fmt: skip
"""Key of a row -> title of its column, which is shown if any row of the kind has the key."""


def sections(run: Run) -> list[Section]:
    """Return a section per diagnosis in the run's ``diagnostics.json``; without this file, one on how to make it.

    Raises ValueError if the file lacks something.
    """
    found = run.written(FILE)
    id = "diagnostics-" + re.sub(r"[^A-Za-z0-9]+", "-", run.name)
    if found is None:
        how = f"`coevolve diagnose {run.path}` finds out who needs whom, who uses what it hears, and who is lazy."
        return [Section(id, "Diagnostics", f"Not measured yet: {how}")]
    try:
        return [_section(id, kind, found) for kind in _KINDS]
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{run.path / FILE} lacks what `coevolve diagnose` writes there; run it again") from error


def _section(id: str, kind: str, found: Mapping[str, Any]) -> Section:
    about, rows = _KINDS[kind], [row for row in found["rows"] if row["kind"] == kind]
    keys = [key for key in _COLUMNS if any(key in row for row in rows)]
    cells: list[list[Cell]] = [[row.get(key) for key in keys] for row in rows]
    sentence = about.sentence(rows) if rows else about.none
    if kind == _FIRST:
        problems = many(found["problems"], "held-out problem")
        sentence = f"Checkpoint {found['checkpoint']}, {problems}, {found['samples']} episodes of each. {sentence}"
    return Section(f"{id}-{kind}", about.title, sentence, [_COLUMNS[k] for k in keys], cells, _plot(rows))


def _plot(rows: Sequence[Mapping[str, Any]]) -> Plot | None:
    """Plot every difference to the team with its interval; for influence, the share of each agent."""
    for value, low, high, title in _INTERVALS:
        those = [row for row in rows if row.get(value) is not None]
        if those:
            names = [" ".join(str(row[key]) for key in ("role", "policy", "setting") if key in row) for row in those]
            least, most = ([row.get(bound) for row in those] for bound in (low, high))
            drawn = Series(title, names, [row[value] for row in those], least, most, points=True)
            return Plot("", title, [drawn])
    return None


def show(found: Sequence[Section]) -> None:
    """Print sections: title, table, sentence."""
    out = console(WIDE, highlight=False)
    for section in found:
        out.print(f"\n{section.title}", style="bold")
        if section.rows:
            shown = Table(box=box.SIMPLE, collapse_padding=True)
            for title in section.columns:
                shown.add_column(title)
            for row in section.rows:
                shown.add_row(*map(_text, row))
            out.print(shown)
        out.print(section.sentence)


def _text(cell: Cell) -> str:
    return "-" if cell is None else f"{cell:.3f}" if isinstance(cell, float) else str(cell)
