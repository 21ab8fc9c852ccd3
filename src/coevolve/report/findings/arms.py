"""The sides of a comparison: groups of runs in which every seed is there once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coevolve.report.runs import Group, Run, grouped
from coevolve.runs.identity import flat

ETA = "algorithm.eta"


def arms(runs: Sequence[Run]) -> list[Group]:
    """The groups of these runs. A seed that a group has again goes into a further group: a run and its copy are two."""
    found: list[Group] = []
    for group in grouped(runs):
        times: dict[int, list[Run]] = {}
        for run in group.runs:
            earlier = sum(other.seed == run.seed for one in times.values() for other in one)
            times.setdefault(earlier, []).append(run)
        for one in times.values():
            name = one[0].name if len(times) > 1 and len(one) == 1 else group.name
            found.append(Group(_unused(name, [other.name for other in found]), one))
    return found


def _unused(name: str, used: Sequence[str]) -> str:
    """``name``, or ``name (2)`` and so on."""
    names = [name, *(f"{name} ({number})" for number in range(2, len(used) + 2))]
    return next(one for one in names if one not in used)


def setting(group: Group, key: str) -> Any:
    """What the recipe says, such as ``algorithm.eta``; None if it says nothing."""
    return flat(group.runs[0].recipe).get(key)


def kl_weights(group: Group) -> set[Any]:
    """The weights of the KL that its policies learnt with, as their steps say: recipes call them by other names from
    rule to rule, leave defaults out, and may let them adapt. What the recipe says, of runs that do not."""
    columns = [run.column(f"agents/{policy}/eta") for run in group.runs for policy in run.policies]
    return {weight for column in columns for weight in column if weight is not None} or {setting(group, ETA)}


def task(group: Group) -> str:
    """The task's name; empty where there is no recipe."""
    return str(setting(group, "task.name") or setting(group, "task") or "")


def by_seed(group: Group) -> dict[int, Run]:
    return {run.seed: run for run in group.runs}
