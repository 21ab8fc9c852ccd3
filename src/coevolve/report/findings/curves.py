"""A run's metrics as arrays, NaN where a step lacks one, and their smoothed values.

A curve is smoothed by the mean over a window of the last steps, a tenth of the run and at least one. Start, peak and
final are the first, the largest and the last of these means, on the terminal, the page, in ``report.md`` and the model
card alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coevolve.report.findings.statistics import Floats
from coevolve.report.findings.student import limit
from coevolve.report.runs import Run

_TENTH = 10


def column(run: Run, key: str) -> Floats:
    """Return a run's metric by step."""
    return as_column(run.lines, key)


def of_agents(run: Run, key: str) -> list[Floats]:
    """Return ``agents/<policy>/<key>`` by step, for each policy."""
    return [column(run, f"agents/{policy}/{key}") for policy in run.policies]


def mean(values: Floats, axis: int | None = None) -> Floats:
    """Return the mean of the values that are not NaN; NaN where there are none."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / known.sum(axis=axis))


def window(steps: int) -> int:
    """Return the number of steps that a curve is smoothed over."""
    return max(1, steps // _TENTH)


def smooth(values: Floats) -> Floats:
    """Return the mean over each window, [n] -> [n - window + 1]; the first covers steps 0 to ``window - 1``."""
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
    """Return a number for a table; None if it is not finite."""
    return float(value) if np.isfinite(value) else None


class Moved(NamedTuple):
    """How a metric moved over a run: its first and its last mean, the number of steps of each, and their difference in
    standard errors, which is None if a mean is of one step or nothing varies. clear: the number of standard errors from
    which it is more than chance."""

    start: float
    final: float
    steps: int
    errors: float | None
    clear: float


def moved(values: Floats) -> Moved:
    """Return how a curve moved; its start and final are NaN where no values are known."""
    steps = window(len(values))
    first, last = (part[~np.isnan(part)] for part in (values[:steps], values[-steps:]))
    error, clear = 0.0, math.inf
    if min(len(first), len(last)) > 1:
        error = float(np.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last)))
        clear = limit(len(first) + len(last) - 2)
    begin, end = start(values), final(values)
    return Moved(begin, end, steps, (end - begin) / error if error > 0 else None, clear)


def as_column(lines: Sequence[Mapping[str, Any]], key: str) -> Floats:
    """Return a metric by step, from the lines of ``metrics.jsonl``."""
    return np.array([np.nan if (value := line.get(key)) is None else float(value) for line in lines])
