"""The curves of one or several runs: reward, KL, reward - eta * KL, and the components of the reward."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coevolve.rundir import read_lines

_PANELS = {"reward": "task reward per turn", "kl": "KL to the start model, nats per turn", "objective": "reward − η·KL"}
_COLUMNS = 3
_PARTS = 4
"""Components of the reward that are drawn, the first that the task names."""
_STYLES = ("--", ":", "-.")
_SEED = re.compile(r"-\d+$")

Lines = list[dict[str, Any]]


def reward_kl(runs: Sequence[Path], output: Path) -> None:
    """Draw the runs' metrics.jsonl into a picture: the team as a line, each policy thinner, one colour per group.

    Runs whose names differ in a final ``-<seed>`` only are one group: its mean, and a band of one standard error.
    Raises ValueError for a run without metrics.
    """
    groups: dict[str, list[Lines]] = {}
    for run in runs:
        lines = read_lines(Path(run) / "metrics.jsonl")
        if not lines:
            raise ValueError(f"{run} has no metrics to draw; is it a run directory, and did it finish a step?")
        groups.setdefault(_SEED.sub("", Path(run).resolve().name), []).append(lines)
    panels = _panels([lines[0] for group in groups.values() for lines in group])
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 3.8 * rows), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, (key, title) in zip(axes, panels.items(), strict=False):
        for number, (name, group) in enumerate(groups.items()):
            if all(key in lines[0] for lines in group):
                _draw(axis, name, group, key, f"C{number}", one=len(groups) == 1)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
    axes[0].legend(fontsize=8)
    output.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(str(output), dpi=130)


def _panels(first: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Metric -> title, of what the runs' first steps have: the known metrics, then parts of the reward."""
    present = dict.fromkeys(key for line in first for key in line)
    parts = [key for key in present if key.startswith("parts/")][:_PARTS]
    known = {key: title for key, title in _PANELS.items() if key in present}
    return known | {key: key.removeprefix("parts/").replace("_", " ") for key in parts}


def _draw(axis: Axes, name: str, group: Sequence[Lines], key: str, colour: str, *, one: bool) -> None:
    policies = sorted({k.split("/")[1] for k in group[0][0] if k.startswith("agents/") and k.endswith(f"/{key}")})
    label = name if len(group) == 1 else f"{name} ({len(group)} seeds)"
    _curve(axis, group, key, label, "-", colour, band=True)
    for number, policy in enumerate(policies if len(policies) > 1 else ()):
        shade = f"C{number + 1}" if one else colour
        style = _STYLES[number % len(_STYLES)]
        _curve(axis, group, f"agents/{policy}/{key}", policy if one else None, style, shade, band=False)


def _curve(
    axis: Axes, group: Sequence[Lines], key: str, label: str | None, style: str, colour: str, *, band: bool
) -> None:
    """The mean over runs at the steps that all of them have."""
    values = [{line["step"]: float(line[key]) for line in lines if key in line} for lines in group]
    steps = sorted(set.intersection(*(set(v) for v in values)))
    rows = np.array([[v[step] for step in steps] for v in values])
    middle = rows.mean(axis=0)
    axis.plot(steps, middle, style, color=colour, label=label, linewidth=1.6 if band else 0.9)
    if band and len(rows) > 1:
        error = rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
        axis.fill_between(steps, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)


def rise(lines: Sequence[Mapping[str, Any]]) -> str:
    """How the reward of a run moved: its mean over the first and the last fifth of the steps, with the difference."""
    reward = np.array([float(line["reward"]) for line in lines])
    part = max(1, len(reward) // 5)
    first, last = reward[:part], reward[-part:]
    text = f"reward {first.mean():.3f} -> {last.mean():.3f}"
    if part < 2:
        return text
    error = np.sqrt(first.var(ddof=1) / part + last.var(ddof=1) / part)
    size = f", {(last.mean() - first.mean()) / error:+.1f} standard errors" if error > 0 else ""
    return f"{text} (means of the first and last {part} steps{size})"
