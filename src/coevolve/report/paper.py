"""The findings for a paper: ``report.md`` with tables, and a PNG for every plot beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from coevolve.report.findings import findings
from coevolve.report.findings.opening import opening
from coevolve.report.plot import picture, reward_kl
from coevolve.report.runs import Run
from coevolve.report.section import Cell, Section
from coevolve.report.wording import and_list, many, number, table_rows
from coevolve.runs.durable import write_text

_MARKS = re.compile(r"[|*]|<(?=[A-Za-z/!])")
_NAMED = 4  # most runs that the title names


def write_paper(runs: Sequence[Run], output: Path) -> list[Path]:
    """Write the Markdown file and its pictures, ``<stem of output>-<id>.png``; returns all files, the text first."""
    curves = _beside(output, "curves")
    output.parent.mkdir(parents=True, exist_ok=True)
    reward_kl([run.path for run in runs], curves)
    names = and_list([run.name for run in runs]) if len(runs) <= _NAMED else many(len(runs), "run")
    said = opening(runs)
    told = _text(f"{said.trained} {said.came} {said.footnote}")
    parts = [f"# Report of {_text(names)}", told, _link("Curves", curves)]
    written = [output, curves]
    for section in findings(runs):
        parts.append(f"## {_text(section.title)}\n\n{_text(section.sentence)}")
        if section.rows:
            parts.append(_table(section))
        if section.plot is not None:
            written.append(_beside(output, section.id))
            picture(section.plot, written[-1])
            parts.append(_link(section.title, written[-1]))
    write_text(output, "\n\n".join(parts) + "\n")
    return written


def _beside(output: Path, id: str) -> Path:
    return output.with_name(f"{output.stem}-{id}.png")


def _link(title: str, file: Path) -> str:
    return f"![{_text(title)}]({quote(file.name)})"


def _table(section: Section) -> str:
    """Return a Markdown table; columns with numbers are aligned right."""
    right = [any(isinstance(row[place], int | float) for row in section.rows) for place in range(len(section.columns))]
    head = [_text(title) for title in section.columns]
    rule = ["---:" if numeric else ":---" for numeric in right]
    return table_rows([head, rule, *(map(_cell, row) for row in section.rows)])


def _cell(value: Cell) -> str:
    return _text(value) if isinstance(value, str) else number(value)


def _text(text: str) -> str:
    """Return text on one line, with Markdown's marks escaped."""
    return _MARKS.sub(r"\\\g<0>", " ".join(text.split()))
