"""A metric as a mean over a run's last turns, as many in every run, so that all runs are smoothed alike.

A mean lags behind the run, by half of its window. Windows of each run's own length would favour the run whose window is
of fewer turns. A step counts by its turns, and a step of which the window covers a part by that part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coevolve.report.findings.curves import column
from coevolve.report.findings.statistics import Floats
from coevolve.report.runs import Run

_TENTH = 10


def turns(run: Run) -> Floats:
    """Return the turns that a run sampled in each step, up to the first step where they are unknown."""
    sampled = column(run, "turns")
    unknown = np.flatnonzero(np.isnan(sampled))
    return sampled[: unknown[0]] if len(unknown) else sampled


def width(sampled: Sequence[Floats]) -> float:
    """Return the number of turns that these runs are smoothed over: a tenth of the shortest run, but at least the
    largest step, since the turns within a step are all of the same policies. No more than the shortest run has."""
    shortest = min(float(run.sum()) for run in sampled)
    return min(shortest, max(shortest / _TENTH, *(float(run.max()) for run in sampled)))


def ends(sampled: Floats, wide: float) -> Floats:
    """Return where windows end: after ``wide`` turns, and after each later step."""
    spent = np.cumsum(sampled)
    return np.concatenate([[wide], spent[spent > wide]])


def trailing(values: Floats, sampled: Floats, wide: float) -> Floats:
    """Return the mean of a metric over the last ``wide`` turns at each of ``ends``, of the turns where it is known; NaN
    if it is known of none of them."""
    values = values[: len(sampled)]
    known = ~np.isnan(values)
    counted = np.where(known, sampled, 0.0)
    after = ends(sampled, wide)
    total, number = (_within(part, sampled, after, wide) for part in (np.where(known, values, 0.0) * counted, counted))
    return np.asarray(np.divide(total, number, out=np.full(len(after), np.nan), where=number > 0))


def _within(parts: Floats, sampled: Floats, after: Floats, wide: float) -> Floats:
    """Return the sum of what steps contribute within each window, evenly over the turns of a step."""
    spent, so_far = (np.concatenate([[0.0], np.cumsum(one)]) for one in (sampled, parts))
    return np.asarray(np.interp(after, spent, so_far) - np.interp(after - wide, spent, so_far))
