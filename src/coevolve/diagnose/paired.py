"""Statistics of means over problems: standard errors, and bootstrap intervals of functions of means.

Letters: P problems, M members, U units, C columns, R resamples.

The unit is the problem, because its members are not independent of each other. With a single problem the members are
the units, and results hold for that problem only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from coevolve.report.findings.statistics import CONFIDENCE, FEWEST

Numbers = NDArray[np.float64]

RESAMPLES = 2000


def units(values_PM: Numbers) -> Numbers:
    """Return one number per unit, [U], from [P, M]."""
    found: Numbers = values_PM.mean(1) if len(values_PM) > 1 else values_PM[0]
    return found


def standard_error(values_U: Numbers) -> float:
    """Return the standard error of the mean, NaN for one unit."""
    return float(values_U.std(ddof=1)) / math.sqrt(len(values_U)) if len(values_U) > 1 else math.nan


def _first(means_CR: Numbers) -> Numbers:
    found: Numbers = means_CR[0]
    return found


def interval(columns_CU: Numbers, of: Callable[[Numbers], Numbers] = _first) -> tuple[float, float]:
    """Return the percentile bootstrap's 95 % interval of a function of the columns' means over units.

    of: means [C, R] -> [R]; the first mean itself if left out. Units are drawn with replacement, the same ones for all
    columns and in every call. (NaN, NaN) for fewer than ``FEWEST`` units, and where the function is not finite for
    every resample.
    """
    units = columns_CU.shape[1]
    if units < FEWEST:
        return math.nan, math.nan
    counts_RU = np.random.default_rng(0).multinomial(units, [1 / units] * units, RESAMPLES)
    with np.errstate(divide="ignore", invalid="ignore"):
        found_R = of(columns_CU @ counts_RU.T / units)
    if not np.isfinite(found_R).all():
        return math.nan, math.nan
    low, high = np.quantile(found_R, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def with_interval(name: str, columns_CU: Numbers, of: Callable[[Numbers], Numbers]) -> dict[str, float]:
    """Return a function of the columns' means under this name, and its interval as ``<name>_low`` and ``<name>_high``.

    of: means [C, R] -> [R]. NaN where the function divides by zero.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = float(of(columns_CU.mean(1, keepdims=True))[0])
    low, high = interval(columns_CU, of)
    return {name: found, f"{name}_low": low, f"{name}_high": high}
