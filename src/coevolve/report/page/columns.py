"""The curves of runs as a page draws them: a column per metric, other costs for the x axis, and the casts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from coevolve.report.page.blob import rounded
from coevolve.report.runs import Run

_NUMBERS = 400_000
"""Most numbers of all curves of a page, about a megabyte; longer runs are drawn at every second step, third, ..."""


def columns(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a mapping per run: steps, turns and updates (both summed up to each step), columns (metric -> values),
    casts (the first cast and each change, with steps, turns, updates), every (n: each n-th step is there) and written
    (number of steps in all)."""
    numbers = sum(len(run.lines) * len(run.keys) for run in runs)
    every = max(1, math.ceil(numbers / _NUMBERS))
    return [_columns(run, every) for run in runs]


def _columns(run: Run, every: int) -> dict[str, Any]:
    axes: dict[str, list[float]] = {
        "steps": [int(line["step"]) for line in run.lines],
        "turns": _summed(run, ["turns"]),
        "updates": _summed(run, [f"agents/{policy}/updates" for policy in run.policies]),
    }
    last = len(run.lines) - 1
    kept = sorted({*range(0, last + 1, every), last})
    return {
        **{name: [values[i] for i in kept] for name, values in axes.items()},
        "columns": {key: _thinned(run.column(key), kept) for key in run.keys},
        "casts": [
            {"cast": cast, **{name: values[i] for name, values in axes.items()}} for i, cast in _changes(run.lines)
        ],
        "every": every,
        "written": len(run.lines),
    }


def _summed(run: Run, keys: Iterable[str]) -> list[float]:
    """Return the cumulative sum of these metrics together, up to each step."""
    columns = [run.column(key) for key in keys]
    return list(accumulate(sum(value or 0.0 for value in values) for values in zip(*columns, strict=True))) or [
        0.0 for _ in run.lines
    ]


def _changes(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, str]]]:
    """Return position -> cast, as pairs, for the first step and each step whose cast differs from the step before."""
    casts = [line.get("cast", {}) for line in lines]
    return [(i, now) for i, (before, now) in enumerate(pairwise([None, *casts])) if before != now]


def _thinned(values: Sequence[float | None], kept: Iterable[int]) -> list[float | None]:
    return [rounded(values[i]) for i in kept]
