"""A run's metrics as arrays: NaN where a step lacks one, windows of a tenth of the run, and what was spent so far.

A curve is smoothed by the mean of the last steps, a tenth of the run and at least one: start, peak and final are the
first, the largest and the last of these means, wherever a run is spoken of: terminal, page, paper, model card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coevolve.report.findings.statistics import Floats
from coevolve.report.runs import Run

_TENTH = 10


def column(run: Run, key: str) -> Floats:
    """A metric by step."""
    return as_column(run.lines, key)


def of_agents(run: Run, key: str) -> list[Floats]:
    """``agents/<policy>/<key>`` by step, of each policy."""
    return [column(run, f"agents/{policy}/{key}") for policy in run.policies]


def mean(values: Floats, axis: int | None = None) -> Floats:
    """Of what is known; NaN where nothing is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / known.sum(axis=axis))


def window(steps: int) -> int:
    """How many steps a mean is taken over."""
    return max(1, steps // _TENTH)


def smooth(values: Floats) -> Floats:
    """[n] -> [n - window + 1], the first for the steps up to and including number ``window - 1``."""
    return mean(np.lib.stride_tricks.sliding_window_view(values, window(len(values))), axis=1)


def start(values: Floats) -> float:
    return float(smooth(values)[0])


def final(values: Floats) -> float:
    return float(smooth(values)[-1])


def peak(values: Floats) -> float:
    known = smooth(values)
    known = known[~np.isnan(known)]
    return float(known.max()) if len(known) else np.nan


def cell(value: float) -> float | None:
    """A number for a table; None where it is not known."""
    return float(value) if np.isfinite(value) else None


class Moved(NamedTuple):
    """How a metric moved over a run: its first and its last mean, over how many steps each, and their difference in
    standard errors, which is None where a mean is of one step or nothing varies."""

    start: float
    final: float
    steps: int
    errors: float | None


def moved(values: Floats) -> Moved:
    """Start and final of a curve. NaN where nothing is known."""
    steps = window(len(values))
    first, last = (part[~np.isnan(part)] for part in (values[:steps], values[-steps:]))
    error = 0.0
    if min(len(first), len(last)) > 1:
        error = float(np.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last)))
    begin, end = start(values), final(values)
    return Moved(begin, end, steps, (end - begin) / error if error > 0 else None)


def as_column(lines: Sequence[Mapping[str, Any]], key: str) -> Floats:
    """A metric by step, of the lines of ``metrics.jsonl``."""
    return np.array([np.nan if (value := line.get(key)) is None else float(value) for line in lines])
