"""The start and the end of a run in words, with the same numbers in the terminal, on the page and in a model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coevolve.report.findings.curves import Moved, as_column, moved
from coevolve.report.wording import and_list, number

_METRICS = ("reward", "objective")
"""The metrics that a training may aim at."""


def ends(lines: Sequence[Mapping[str, Any]]) -> dict[str, Moved]:
    """Return name -> how it moved, for the reward and the objective, if a run's metrics have them."""
    found = {name: moved(as_column(lines, name)) for name in _METRICS}
    return {name: one for name, one in found.items() if np.isfinite([one.start, one.final]).all()}


def rise(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a line: ``reward 1.07 -> 3.65 (+9.1 standard errors), objective 0.97 -> 1.58; means of ...``."""
    found = ends(lines)
    if not found:
        return "no turn was scored"
    said = ", ".join(f"{name} {number(one.start)} -> {number(one.final)}{_errors(one)}" for name, one in found.items())
    steps = next(iter(found.values())).steps
    return said if steps < 2 else f"{said}; means of the first and the last {steps} of {len(lines)} steps"


def sentence(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return ``The reward rose from 1.07 to 3.65, and the objective rose from 0.97 to 1.58.``"""
    found = ends(lines)
    if not found:
        return "No turn was scored."
    said = [f"{name} {_verb(one)} from {number(one.start)} to {number(one.final)}" for name, one in found.items()]
    return f"The {', and the '.join(said)}."


def footnote(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return what the numbers of ``sentence`` are, and how certain; empty if each is of one step."""
    found = ends(lines)
    steps = max((one.steps for one in found.values()), default=1)
    if steps < 2:
        return ""
    apart = [f"{one.errors:+.1f}" for one in found.values() if one.errors is not None]
    clear = max((one.clear for one in found.values() if one.errors is not None), default=0.0)
    sure = f", {and_list(apart)} standard errors apart; clear from {clear:.1f} on" if apart else ""
    return f"Means of the first and the last {steps} of {len(lines)} steps{sure}."


def _verb(one: Moved) -> str:
    """Return the verb that the numbers justify; without a standard error, "went"."""
    if one.errors is None:
        return "went"
    if abs(one.errors) < one.clear:
        return "did not clearly move,"
    return "rose" if one.errors > 0 else "fell"


def _errors(one: Moved) -> str:
    return "" if one.errors is None else f" ({one.errors:+.1f} standard errors)"
