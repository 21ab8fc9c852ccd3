"""The sides of a comparison: groups of runs in which every seed occurs once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from coevolve.report.runs import Group, Run, grouped
from coevolve.runs.identity import flat

ETA = "algorithm.eta"


def arms(runs: Sequence[Run]) -> list[Group]:
    """Return the groups of these runs. A seed that occurs again in a group starts a further group: a run and its copy
    count as two."""
    found: list[Group] = []
    for group in grouped(runs):
        parts = once(group.runs, lambda run: run.seed)
        for one in parts:
            name = one[0].name if len(parts) > 1 and len(one) == 1 else group.name
            found.append(Group(unused(name, [other.name for other in found]), one))
    return found


def once(runs: Sequence[Run], key: Callable[[Run], Hashable]) -> list[list[Run]]:
    """Split the runs into parts in which each value of the key occurs once: a run and its copy count as two."""
    times: Counter[Hashable] = Counter()
    parts: dict[int, list[Run]] = {}
    for run in runs:
        parts.setdefault(times[key(run)], []).append(run)
        times[key(run)] += 1
    return list(parts.values())


def unused(name: str, used: Sequence[str]) -> str:
    """Return ``name``, or ``name (2)`` and so on if it is used."""
    names = [name, *(f"{name} ({number})" for number in range(2, len(used) + 2))]
    return next(one for one in names if one not in used)


def setting(group: Group, key: str) -> Any:
    """Return a setting of the group's recipe, such as ``algorithm.eta``; None if the recipe leaves it out."""
    return flat(group.runs[0].recipe).get(key)


def kl_weights(group: Group) -> set[Any]:
    """Return the KL weights that the group's policies learnt with, as the metrics record them: recipes name them
    differently from rule to rule, leave defaults out, and may adapt them. Without such metrics, the recipe's eta."""
    columns = [run.column(f"agents/{policy}/eta") for run in group.runs for policy in run.policies]
    return {weight for column in columns for weight in column if weight is not None} or {setting(group, ETA)}


def task(group: Group) -> str:
    """Return the task's name; empty if there is no recipe."""
    return str(setting(group, "task.name") or setting(group, "task") or "")
