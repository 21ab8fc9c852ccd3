"""Pictures: the curves of runs (reward, KL, reward - eta * KL, components of the reward), and the plots of sections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coevolve.report.findings.alike import ALL_TURNS, compared
from coevolve.report.findings.arms import arms
from coevolve.report.runs import Group, read
from coevolve.report.section import Plot, Series
from coevolve.runs import durable

_PANELS = {"reward": "task reward per turn", "kl": "KL to the start model, nats per turn", "objective": "reward − η·KL"}
_COLUMNS = 3
_PARTS = 4
"""The number of components of the reward that are drawn: the first that the task names."""
_STYLES = ("--", ":", "-.")


def reward_kl(runs: Sequence[Path], output: Path) -> None:
    """Draw the curves of runs: the team as a line, each policy as a thinner one, one colour per group.

    Runs whose recipes differ in the seed only are one group, drawn as its mean with a band of one standard error.
    Raises ValueError for a run without metrics.
    """
    groups = arms([read(Path(run)) for run in runs])
    panels = _panels(groups)
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 3.8 * rows), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, (key, title) in zip(axes, panels.items(), strict=False):
        for number, group in enumerate(groups):
            if all(key in run.keys for run in group.runs):
                _draw(axis, group, key, f"C{number}", one=len(groups) == 1)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
    axes[0].legend(fontsize=8)
    _save(figure, output)


def curves(run: Path) -> Path:
    """Draw the curves of a run into ``reward-kl.png`` of its folder; returns the file."""
    target, beside = run / "reward-kl.png", run / ".reward-kl.png"
    reward_kl([run], beside)
    durable.publish(beside, target)
    return target


def picture(plot: Plot, output: Path) -> None:
    """Draw a section's plot: lines with their bands, or points."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis: Axes = figure.subplots()
    for number, series in enumerate(plot.series):
        _series(axis, series, f"C{number}")
    axis.set_xlabel(plot.x)
    axis.set_ylabel(plot.y)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    if any(isinstance(x, str) for series in plot.series for x in series.x):
        axis.tick_params("x", labelrotation=30)
    _save(figure, output)


def _series(axis: Axes, series: Series, colour: str) -> None:
    y = _floats(series.y)
    style = "o" if series.points or len(series.x) == 1 else "-"
    axis.plot(series.x, y, style, color=colour, label=series.name, linewidth=1.6)
    if series.low is None or series.high is None:
        return
    if series.points:
        axis.vlines(series.x, _floats(series.low), _floats(series.high), color=colour)
    else:
        axis.fill_between(series.x, _floats(series.low), _floats(series.high), color=colour, alpha=0.2, linewidth=0)


def _floats(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


def _save(figure: Figure, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(130)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(str(output))  # draws the figure once; ``savefig`` draws it twice


def _panels(groups: Sequence[Group]) -> dict[str, str]:
    """Return metric -> title for the metrics that the runs have: the known ones, then components of the reward. If the
    teams differ in roles or play, the metrics of the role that they are compared by come first."""
    present = dict.fromkeys(key for group in groups for run in group.runs for key in run.keys)
    parts = [key for key in present if key.startswith("parts/")][:_PARTS]
    known = {key: title for key, title in _PANELS.items() if key in present}
    if (reward := compared(groups)) != ALL_TURNS:
        alike = {f"{key}/{reward.role}": f"{title}{reward.whose}" for key, title in known.items()} if reward else {}
        known = {key: title for key, title in alike.items() if key in present} | {
            key: f"{title}, of unlike turns" for key, title in known.items()
        }
    return known | {key: key.removeprefix("parts/").replace("_", " ") for key in parts}


def _draw(axis: Axes, group: Group, key: str, colour: str, *, one: bool) -> None:
    policies = sorted(policy for policy in group.runs[0].policies if f"agents/{policy}/{key}" in group.runs[0].keys)
    label = group.name if len(group.runs) == 1 else f"{group.name} ({len(group.runs)} seeds, ±SE)"
    _curve(axis, group, key, label, "-", colour, band=True)
    for number, policy in enumerate(policies if len(policies) > 1 else ()):
        shade = f"C{number + 1}" if one else colour
        style = _STYLES[number % len(_STYLES)]
        _curve(axis, group, f"agents/{policy}/{key}", policy if one else None, style, shade, band=False)


def _curve(axis: Axes, group: Group, key: str, label: str | None, style: str, colour: str, *, band: bool) -> None:
    """Draw the mean over runs at the steps that all of them have."""
    values = [{line["step"]: line[key] for line in run.lines if line.get(key) is not None} for run in group.runs]
    steps = sorted(set.intersection(*(set(v) for v in values)))
    rows = np.array([[v[step] for step in steps] for v in values])
    middle = rows.mean(axis=0)
    axis.plot(steps, middle, style, color=colour, label=label, linewidth=1.6 if band else 0.9)
    if band and len(rows) > 1:
        error = rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
        axis.fill_between(steps, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)
