"""The trade-off of reward and KL: the points that runs end at, their Pareto front, and its hypervolume."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from coevolve.report.findings.alike import ALL_TURNS, Reward
from coevolve.report.findings.arms import ETA, once
from coevolve.report.findings.curves import column, final, start
from coevolve.report.findings.statistics import estimate
from coevolve.report.runs import Group, Run, grouped
from coevolve.report.section import Plot, Section, Series
from coevolve.report.wording import and_list, number
from coevolve.runs.identity import flat

Point = tuple[float, float]
"""KL (lower is better), reward (higher is better)."""

BEYOND = 1.1
"""The reference point's KL as a multiple of the largest KL: a little beyond it, so that the farthest point counts."""

_ETA_SHOWN = re.compile(r"[- ]eta=[0-9.]+(e[-+]?[0-9]+)?")
"""The part of a run's name that gives eta; names without it are equal in a family."""


def pareto(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point dominates, sorted by KL; of equal points one."""
    found: list[Point] = []
    for kl, reward in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not found or reward > found[-1][1]:
            found.append((kl, reward))
    return found


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Return the area that the points dominate, up to the reference point (Zitzler and Thiele 1999): nats x reward.

    Only points that are better than the reference in both coordinates count; 0 without any.
    """
    front = pareto([(kl, reward) for kl, reward in points if kl < reference[0] and reward > reference[1]])
    return sum(((end - kl) * (reward - reference[1]) for (kl, reward), (end, _) in pairwise([*front, reference])), 0.0)


def sections(groups: Sequence[Group], reward: Reward = ALL_TURNS) -> list[Section]:
    """Return the section on the points where groups end, and that on the hypervolume of families of groups that differ
    in eta alone; groups without KL are left out."""
    ended = [group for group in groups if all(np.isfinite(_end(run, reward)).all() for run in group.runs)]
    if len(ended) < 2:
        return []
    runs = [run for group in ended for run in group.runs]
    lowest = min(start(column(run, reward.metric)) for run in runs)
    reference = (BEYOND * max(_end(run, reward)[0] for run in runs), lowest)
    left_out = [group.name for group in groups if group not in ended]
    return [_points(ended, left_out, reward), *_volumes(ended, reference, reward)]


def _end(run: Run, reward: Reward) -> Point:
    return final(column(run, reward.kl)), final(column(run, reward.metric))


def _points(groups: Sequence[Group], left_out: Sequence[str], reward: Reward) -> Section:
    ends = {group.name: [_end(run, reward) for run in group.runs] for group in groups}
    middle = {
        name: (float(np.mean(points, axis=0)[0]), float(np.mean(points, axis=0)[1])) for name, points in ends.items()
    }
    front = pareto(list(middle.values()))
    rows = [(name, len(ends[name]), *point, "yes" if point in front else "no") for name, point in middle.items()]
    best = and_list([name for name, point in middle.items() if point in front])
    sentence = (
        f"Mean KL and mean reward over the last tenth of the steps. On the front, that no other group beats in both: "
        f"{best}. The points of the plot are seeds: where those of two groups mix, the front is a matter of chance."
    )
    if left_out:
        sentence += f" Left out, because a run has no KL at its end: {and_list(left_out)}."
    sentence += reward.of_kl(groups)
    series = [
        Series(group.name, *_transposed(ends[group.name]), labels=[run.name for run in group.runs], points=True)
        for group in groups
    ]
    series.append(Series("front of the means", *_transposed(_staircase(front))))
    columns = ("group", "seeds", "KL (nats/turn)", f"reward{reward.whose}", "on the front")
    plot = Plot("KL to the start, nats per turn", f"reward{reward.whose}", series)
    return Section("frontier", f"Reward-KL frontier{reward.whose}", sentence, columns, rows, plot)


def _staircase(front: Sequence[Point]) -> list[Point]:
    """Return the boundary of the area that the front dominates, in steps: nothing between two points was reached."""
    return [*(step for (kl, reward), (end, _) in pairwise(front) for step in ((kl, reward), (end, reward))), front[-1]]


def _transposed(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [kl for kl, _ in points], [reward for _, reward in points]


def _volumes(groups: Sequence[Group], reference: Point, reward: Reward) -> list[Section]:
    """Return a section with a row per family of runs that differ in seed and eta alone, if any family varies eta."""
    rows, swept = [], False
    for family in _families([run for group in groups for run in group.runs]):
        etas = {_eta(run) for run in family.runs}
        ends: dict[int, dict[str, Point]] = {}
        for run in family.runs:
            ends.setdefault(run.seed, {})[_eta(run)] = _end(run, reward)
        areas = [hypervolume(list(points.values()), reference) for points in ends.values() if len(points) == len(etas)]
        swept |= len(etas) > 1
        if areas:
            rows.append((family.name, len(etas), *estimate(areas)))
    if not swept:
        return []
    sentence = (
        f"The area between each family's front and the reference point (KL {number(reference[0])}, a tenth beyond the "
        f"largest; reward {number(reference[1])}, the smallest at a start), seed by seed, with a bootstrap 95 % "
        "interval. More points can only add to it: compare families of equally many values of eta."
    )
    columns = ("family", "values of eta", "seeds", "hypervolume", "low", "high")
    names, _, _, means, low, high = map(list, zip(*rows, strict=True)) if rows else ([],) * 6
    plot = Plot("", "hypervolume", [Series("hypervolume", names, means, low, high, points=True)]) if rows else None
    return [Section("hypervolume", f"Hypervolume over eta{reward.whose}", sentence, columns, rows, plot)]


def _families(runs: Sequence[Run]) -> list[Group]:
    """Group the runs, and name the groups, as if eta were neither in their recipes nor in their folders' names."""
    known = {run.path: run for run in runs}
    silent = [
        replace(run, name=_ETA_SHOWN.sub("", run.name), recipe={**run.recipe, "algorithm": _without_eta(run)})
        for run in runs
    ]
    found = [(group.name, [known[run.path] for run in group.runs]) for group in grouped(silent)]
    return [
        Group(f"{name} ({i + 1})" if i else name, one)
        for name, those in found
        for i, one in enumerate(once(those, lambda run: (run.seed, _eta(run))))
    ]


def _without_eta(run: Run) -> Any:
    algorithm = run.recipe.get("algorithm", {})
    if not isinstance(algorithm, Mapping):  # only a name
        return algorithm
    return {key: value for key, value in algorithm.items() if f"algorithm.{key}" != ETA}


def _eta(run: Run) -> str:
    return str(flat(run.recipe).get(ETA))
