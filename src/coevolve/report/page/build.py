"""The page as one HTML file, from its opening to its recipes; it needs no network and no other files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from coevolve.recipe.inputs import dump
from coevolve.report.findings import findings
from coevolve.report.findings.arms import arms, unused
from coevolve.report.findings.opening import opening
from coevolve.report.page.blob import blob, pack
from coevolve.report.page.columns import columns
from coevolve.report.page.dialogues import dialogues
from coevolve.report.runs import Run
from coevolve.runs.durable import write_text
from coevolve.runs.folder import plain

LIMIT = 10_000_000
"""Most bytes of a page: small enough for an e-mail."""

_SPARE = 20_000  # bytes for the tags around the dialogues
_SCRIPTS = (
    *("dom", "data", "theme", "charts", "plots", "curves", "sections", "diff"),
    *("tokens", "graph", "dialogue", "search", "viewer", "runs", "overview", "app"),
)
"""The scripts, each after those that it uses."""


@dataclass(frozen=True)
class Content:
    """The content of a page: the overview, and the dialogues' chunks by id; all of them are blobs."""

    overview: str
    chunks: Mapping[str, str]


def write_page(runs: Sequence[Run], output: Path) -> Path:
    """Write the page of these runs; returns its path. It holds as many dialogues as ``LIMIT`` allows, and says so."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, html(content(runs)))
    return output


def content(runs: Sequence[Run]) -> Content:
    """Return the content of the page of these runs."""
    groups = arms(runs)
    name_of = {run.path: group.name for group in groups for run in group.runs}
    about = [
        _about(run, name_of[run.path]) | {"name": name} | numbers
        for run, name, numbers in zip(runs, _unique([run.name for run in runs]), columns(runs), strict=True)
    ]
    sections = [plain(asdict(section)) for section in findings(runs)]
    overview = {"runs": about, "opening": asdict(opening(runs)), "sections": sections}
    room = max(0, LIMIT - len(html(Content(blob(overview), {}))) - _SPARE)
    packed = dialogues(runs, room)
    return Content(blob(overview | {"dialogues": packed.index}), packed.chunks)


def html(shown: Content | None) -> str:
    """Return the page; without content, one that requests it from the server that it came from (``watch``)."""
    folder = resources.files("coevolve.report").joinpath("page").joinpath("web")
    scripts = "\n".join(folder.joinpath(f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    blobs = {"plotly": _plotly()} | ({"data": shown.overview, **shown.chunks} if shown else {})
    parts = {
        "/*css*/": folder.joinpath("page.css").read_text("utf-8"),
        "/*scripts*/": scripts,
        "<!--blobs-->": "\n".join(f'<script type="text/plain" id="{k}">{text}</script>' for k, text in blobs.items()),
    }
    page = folder.joinpath("page.html").read_text("utf-8")
    for mark, part in parts.items():
        page = page.replace(mark, part)
    return page


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # slow to import, and only needed here

    return pack(get_plotlyjs())


def _unique(names: Sequence[str]) -> list[str]:
    """Number runs after the first of the same name: the page tells runs apart by their names."""
    found: list[str] = []
    for name in names:
        found.append(unused(name, found))
    return found


def _about(run: Run, group: str) -> dict[str, Any]:
    return {
        "group": group,
        "seed": run.seed,
        "recipe": dump(plain(run.recipe)),
        "environment": json.dumps(run.written("environment.json"), indent=2, ensure_ascii=False),
    }
