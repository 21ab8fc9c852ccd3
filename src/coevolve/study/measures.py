"""The measures of the study: one number per result, taken where its budget ends if two arms are compared at equal cost.

A measure is two words, how to measure and which metric: ``end reward/pioneer``, ``held-out parts/tests``. If its scale
differs from that of the measure it is compared with, a divisor follows: ``end turn/1/reward / 4``. ``MEANINGS`` has
the first words; of the evaluation ``bare/ann NAME`` is of one policy, ``NAME+OTHER`` the sum of both. ``hypervolume``
is of several arms and has no metric.

The budget is the smaller of the costs of two arms, or the largest KL that both reached; a run that was beyond the
budget from its first point is not measured. All measures but ``end``, ``mean`` and ``rise`` exist at the end of a run
only, so they compare arms that spent the same, within ``_SAME``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from coevolve.files import shown
from coevolve.names import did_you_mean
from coevolve.report.findings.curves import column, mean, of_agents, peak, smooth, start, window
from coevolve.report.findings.frontier import BEYOND, hypervolume
from coevolve.report.findings.statistics import Floats
from coevolve.report.runs import Run
from coevolve.study.results import MOST, Result

MEANINGS: Mapping[str, str] = {
    "end": "smoothed, where the budget ends",
    "mean": "the mean over the run up to there",
    "rise": "`end` less `start`",
    "start": "smoothed, at the beginning: the mean of the first tenth of the steps, in which much may be learnt",
    "early": "smoothed, a fifth into the run",
    "noise": "the standard deviation of a step around its neighbours (of few steps' means in runs of more than "
    f"{MOST} steps)",
    "halfway": "the share of the run after which it has gone half of the way from start to peak",
    "held-out": "the trained team on held-out problems, sampled, the mean over the roles",
    "untrained": "the start team on held-out problems, sampled, the mean over the roles",
    "bare": "each trained policy alone on held-out problems, on the bare prompt, the mean over policies; "
    "`best@8` is the best of eight answers",
    "bare-untrained": "each start policy alone, as `bare`",
    "bare-highest": "each trained policy alone: the largest value (chance in the evaluation raises it)",
    "bare-lowest": "each trained policy alone: the smallest value (chance in the evaluation lowers it)",
    "hypervolume": "of several arms: the area under their ends' frontier of the first role's reward against KL",
}
"""The first word of a measure -> how the metric after it is taken."""

_SAME = 0.01
"""Relative tolerance: two runs whose costs differ by at most this share of the larger one spent the same."""

_EARLY = 5  # "early" is after 1 / 5 of a run

_SCALE = r"(?: / ([1-9]\d*))?"
_MEASURE = re.compile(rf"([a-z-]+)(?:/([\w.-]+))? ([\w./@-]+(?:\+[\w./@-]+)*){_SCALE}")
_METRIC = re.compile(rf"([^ ]+){_SCALE}")


Spent = Callable[[Run], Floats]
"""Run -> its cost after each smoothed step, NaN where it is unknown."""


# The report smooths the runs that it compares over equally many turns. The study smooths each over a tenth of its own
# steps, as it was when its claims were decided: its verdicts must not move with the report.
def _curve(spent: Spent, run: Run, key: str = "reward") -> tuple[Floats, Floats]:
    """Return the cost and a smoothed metric at the steps where both are known and the cost is the largest so far."""
    cost, value = spent(run), smooth(column(run, key))
    known = ~(np.isnan(cost) | np.isnan(value))
    cost, value = cost[known], value[known]
    before = np.maximum.accumulate(np.concatenate([[-np.inf], cost]))[:-1]
    return cost[cost > before], value[cost > before]


def _turns(run: Run) -> Floats:
    return np.cumsum(column(run, "turns"))[window(len(run.lines)) - 1 :]


def _kl(run: Run) -> Floats:
    return smooth(column(run, "kl"))


def _updates(run: Run) -> Floats:
    """Return the optimiser steps of a policy so far, after each training step; the mean over policies that learn."""
    known = [updates for updates in of_agents(run, "updates") if not np.isnan(updates).all()]
    each = np.nan_to_num(np.stack(known)).mean(axis=0) if known else np.full(len(run.lines), np.nan)
    return np.asarray(np.cumsum(each))


def _smoothed_updates(run: Run) -> Floats:
    return _updates(run)[window(len(run.lines)) - 1 :]


SPENT: Mapping[str, Spent] = {"responses": _turns, "updates": _smoothed_updates, "kl": _kl}
"""The costs that two runs can be matched on: name -> function of a run, its cost after each smoothed step."""


@dataclass(frozen=True)
class Budget:
    """A limit of a cost, a key of ``SPENT``: runs are measured up to ``most``."""

    cost: str
    most: float


def _end(run: Run, key: str, budget: Budget | None) -> float:
    if budget is None:
        return float(smooth(column(run, key))[-1])
    cost, value = _curve(SPENT[budget.cost], run, key)
    return float(np.interp(budget.most, cost, value, left=math.nan)) if len(cost) else math.nan


def _mean(run: Run, key: str, budget: Budget | None) -> float:
    values = column(run, key)
    if budget is not None:
        cost = np.cumsum(column(run, "turns")) if budget.cost == "responses" else _updates(run)
        values = values[cost <= budget.most * (1 + _SAME)]
    return float(mean(values)) if len(values) else math.nan


def _noise(run: Run, key: str) -> float:
    steps = np.diff(column(run, key))
    return float(steps.std(ddof=1)) / math.sqrt(2) if len(steps) > 1 else math.nan


def _early(run: Run, key: str) -> float:
    values = smooth(column(run, key))
    return float(values[(len(values) - 1) // _EARLY])


def _halfway(run: Run, key: str) -> float:
    """Return the share of the run after which the metric is halfway from start to peak; NaN if it never rose."""
    values = column(run, key)
    begun, most = start(values), peak(values)
    if math.isnan(begun) or most <= begun:
        return math.nan
    return float(np.argmax(smooth(values) >= (begun + most) / 2)) / len(values)


_ALONG: Mapping[str, Callable[[Run, str, Budget | None], float]] = {
    "end": _end,
    "mean": _mean,
    "rise": lambda run, key, budget: _end(run, key, budget) - start(column(run, key)),
}
"""Measures that can be taken before a run's end."""

_WHOLE: Mapping[str, Callable[[Run, str], float]] = {
    "start": lambda run, key: start(column(run, key)),
    "early": _early,
    "noise": _noise,
    "halfway": _halfway,
}
_ROWS: Mapping[str, tuple[str, str, Callable[[Sequence[float]], float]]] = {
    "held-out": ("trained", "team", fmean),
    "untrained": ("start", "team", fmean),
    "bare": ("trained", "alone", fmean),
    "bare-untrained": ("start", "alone", fmean),
    "bare-highest": ("trained", "alone", max),
    "bare-lowest": ("trained", "alone", min),
}
"""Measures of the evaluation: which weights, in which setting, and how several rows become one number."""


def check_measure(text: str) -> str:
    """Return the text if it is a measure. Raises ValueError, with the list of measures, if it is not."""
    if text == "hypervolume":
        return text
    found = _MEASURE.fullmatch(text)
    hows = (*_ALONG, *_WHOLE, *_ROWS)
    if not found or found[1] not in hows or ((found[2] or "+" in text) and found[1] not in _ROWS):
        near = did_you_mean(text.split(" ")[0], hows)
        raise ValueError(f"no measure {shown(text)}{near}; want hypervolume, or a metric after {', '.join(hows)}")
    return text


def along(measure: str) -> bool:
    """Return whether a measure can be taken before a run's end."""
    return measure.split(" ")[0] in _ALONG


def evaluated(measure: str) -> bool:
    """Return whether a measure is taken from the evaluation on held-out problems."""
    return re.split("[ /]", measure)[0] in _ROWS


def amount(result: Result, measure: str, budget: Budget | None = None) -> float:
    """Return the value of a measure for one result; NaN if the run did not record the metric."""
    found = _MEASURE.fullmatch(measure)
    assert found, measure
    how, policy, what, scale = found.groups()
    return _unscaled(result, how, policy, what, budget) / int(scale or 1)


def _unscaled(result: Result, how: str, policy: str | None, what: str, budget: Budget | None) -> float:
    if how in _ROWS:
        return sum(_of_rows(result, how, policy, name) for name in what.split("+"))
    run = result.run
    if what not in run.keys:
        return math.nan
    return _ALONG[how](run, what, budget) if how in _ALONG else _WHOLE[how](run, what)


def metric(text: str) -> tuple[str, int]:
    """Split a metric of a figure, ``parts/return`` or ``turn/1/reward / 4``, into its name and its divisor."""
    found = _METRIC.fullmatch(text)
    return (found[1], int(found[2] or 1)) if found else (text, 1)


def _of_rows(result: Result, how: str, policy: str | None, what: str) -> float:
    weights, setting, joined = _ROWS[how]
    key = f"{what}/reward" if what.startswith("best@") else what
    rows = [row for row in result.rows if (row["weights"], row["setting"]) == (weights, setting)]
    if policy is not None:
        rows = [row for row in rows if row["policy"] == policy]
    rows = [row for row in rows if (row["role"] == "all") == key.startswith("parts/")]
    known = [float(value) for row in rows if (value := row.get(key)) is not None]
    return float(joined(known)) if known else math.nan


def spread(result: Result) -> float:
    """Return the standard deviation, over held-out problems, of the first role's reward at the start."""
    first = next(iter(result.recipe["roles"]))
    rows = [r for r in result.rows if (r["weights"], r["setting"], r["role"]) == ("start", "team", first)]
    error = rows[0].get("reward_se") if rows else None
    return float(error) * math.sqrt(result.problems) if error is not None else math.nan


def spent(result: Result, cost: str) -> float:
    """Return the total cost of a run, of a kind in ``SPENT``; of KL, the largest that the run reached."""
    found, _ = _curve(SPENT[cost], result.run)
    return float(found[-1]) if len(found) else math.nan


def budget_of(one: Result, other: Result, matching: str) -> Budget | None:
    """Return the budget that both runs reached; None where nothing is matched."""
    if matching not in SPENT:
        return None
    return Budget(matching, min(spent(one, matching), spent(other, matching)))


def same_cost(one: Result, other: Result, matching: str) -> bool:
    """Return whether both runs spent the same in the end; True where nothing is matched."""
    if matching not in SPENT:
        return True
    a, b = (spent(result, matching) for result in (one, other))
    return abs(a - b) <= _SAME * max(a, b)


def areas(ours: Sequence[Result], theirs: Sequence[Result]) -> tuple[float, float]:
    """Return the hypervolume of each side's end points, up to a shared reference point: a little beyond the largest
    KL, at the lowest reward that any run began with."""
    ends = [[(amount(r, "end kl"), amount(r, f"end {_first(r)}")) for r in side] for side in (ours, theirs)]
    every = [*ours, *theirs]
    corner = (
        BEYOND * max(kl for side in ends for kl, _ in side),
        min(amount(result, f"start {_first(result)}") for result in every),
    )
    if not all(math.isfinite(value) for side in ends for point in side for value in point):
        return math.nan, math.nan
    return hypervolume(ends[0], corner), hypervolume(ends[1], corner)


def _first(result: Result) -> str:
    return f"reward/{next(iter(result.recipe['roles']))}"
