"""Reward at equal cost: at the same number of samples, or at the same KL.

Every run is a curve of its smoothed reward over its cost so far. All are smoothed over the same number of turns
(``trailing``), and so is KL. It goes up and down, so its curve has the reward when the run first reached that KL. Runs
are compared at costs that all of them reached, and nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coevolve.report.findings.alike import ALL_TURNS, Reward
from coevolve.report.findings.curves import column, mean
from coevolve.report.findings.statistics import Floats, bootstrap, estimate
from coevolve.report.findings.trailing import ends, trailing, turns, width
from coevolve.report.runs import Group, Run
from coevolve.report.section import Plot, Section, Series
from coevolve.report.wording import and_list, number

_POINTS = 61  # 4 * 15 + 1, so that the quarters are points of the grid
_QUARTERS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Axis:
    """A kind of cost. unit: its name on an axis. at: template for the name of the reward at some cost. adds_up: whether
    the cost only grows. missing: the text on runs without it. key: its metric, by step."""

    id: str
    title: str
    unit: str
    at: str
    adds_up: bool
    missing: str
    key: str


@dataclass(frozen=True)
class Matched:
    """Curves on a common grid of costs: group -> seed -> reward at each cost, for the runs that have a curve.

    reward: the reward compared. left_out: runs whose cost is unknown. alike: whether all runs spent the same in the
    end. caution: a remark on the cost, or empty. window: what the runs are smoothed over, in words.
    """

    axis: Axis
    reward: Reward
    grid: Floats
    rewards: Mapping[str, Mapping[int, Floats]]
    left_out: Sequence[str]
    alike: bool
    caution: str
    window: str


SAMPLES = Axis(
    "samples",
    "Reward at equal samples",
    "turns sampled by all agents",
    "reward at {} turns sampled",
    True,
    "do not count their turns",
    "turns",
)
KL = Axis(
    "kl",
    "Reward against KL",
    "KL to the start, nats per turn",
    "reward at a KL of {} nats",
    False,
    "have no reference, and so no KL",
    "kl",
)


def costs(groups: Sequence[Group], reward: Reward = ALL_TURNS) -> list[Matched]:
    """Match the runs on every axis."""
    axes = SAMPLES, replace(KL, key=reward.kl)
    return [match(axis, groups, reward) for axis in axes]


def match(axis: Axis, groups: Sequence[Group], reward: Reward = ALL_TURNS) -> Matched:
    """Return the runs' curves at the costs that all of them reached; the grid is empty where there are none."""
    runs = [(group.name, run) for group in groups for run in group.runs]
    found, window = _curves(axis, [run for _, run in runs], reward.metric)
    curves: dict[str, dict[int, tuple[Floats, Floats]]] = {}
    for (name, run), one in zip(runs, found, strict=True):
        if len(one[0]):
            curves.setdefault(name, {})[run.seed] = one
    left_out = [run.name for (_, run), (cost, _) in zip(runs, found, strict=True) if not len(cost)]
    every = [cost for cost, _ in found if len(cost)]
    low, high = (max(c[0] for c in every), min(c[-1] for c in every)) if every else (0.0, -1.0)
    grid = np.unique(np.linspace(low, high, _POINTS)) if low <= high else np.array([])
    rewards = {
        name: {seed: np.interp(grid, cost, paid) for seed, (cost, paid) in seeds.items()}
        for name, seeds in curves.items()
    }
    alike = axis.adds_up and len({cost[-1] for cost in every}) == 1
    caution = reward.of_kl(groups) if axis.id == KL.id else ""
    return Matched(axis, reward, grid, rewards, left_out, alike, caution, window)


def _curves(axis: Axis, runs: Sequence[Run], key: str) -> tuple[list[tuple[Floats, Floats]], str]:
    """Return each run's cost and smoothed reward, empty for a run without this cost, and their window in words."""
    priced = [not np.isnan(column(run, axis.key)).all() for run in runs]
    sampled, unit = [turns(run) for run in runs], "turn"
    known = [len(some) == len(run.lines) for run, some in zip(runs, sampled, strict=True)]
    counts = all(one for one, has in zip(known, priced, strict=True) if has)
    if not axis.adds_up and not counts:  # older runs do not count their turns, but have a KL
        sampled, unit = [np.ones(len(run.lines)) for run in runs], "step"
    counted = [some for some, has in zip(sampled, priced, strict=True) if has and len(some)]
    wide = width(counted) if counted else 0.0
    found = [
        _curve(axis, run, key, some, wide) if has and len(some) else (np.array([]), np.array([]))
        for run, some, has in zip(runs, sampled, priced, strict=True)
    ]
    return found, f"{wide:g} {unit}{'s' * (wide != 1)}"


def _curve(axis: Axis, run: Run, key: str, sampled: Floats, wide: float) -> tuple[Floats, Floats]:
    """Return the cost and the smoothed reward where both are known and the cost is the largest so far."""
    value = trailing(column(run, key), sampled, wide)
    cost = ends(sampled, wide) if axis.adds_up else trailing(column(run, axis.key), sampled, wide)
    known = ~(np.isnan(cost) | np.isnan(value))
    cost, value = cost[known], value[known]
    before = np.maximum.accumulate(np.concatenate([[-np.inf], cost]))[:-1]
    return cost[cost > before], value[cost > before]


def section(found: Matched) -> Section:
    """Return a section with a table at the quarters of the common range, and a plot of the groups' mean curves."""
    columns = (found.axis.unit, "group", "seeds", f"reward{found.reward.whose}", "low", "high")
    places = dict.fromkeys(round(share * (len(found.grid) - 1)) for share in _QUARTERS) if len(found.grid) else ()
    rows = [
        (float(found.grid[place]), name, *estimate([float(reward[place]) for reward in seeds.values()]))
        for place in places
        for name, seeds in found.rewards.items()
    ]
    plot = _plot(found) if rows else None
    title, sentence = f"{found.axis.title}{found.reward.whose}", f"{_sentence(found)}{found.caution}"
    return Section(f"equal-{found.axis.id}", title, sentence, columns if rows else (), rows, plot)


def _sentence(found: Matched) -> str:
    axis, said = found.axis, []
    if len(found.grid):
        how = "by what it had spent" if axis.adds_up else "when it first came to that KL"
        least, most = number(found.grid[0]), number(found.grid[-1])
        several = sum(map(len, found.rewards.values())) > 1
        where = (", where all runs end" if found.alike else ", where all runs have been") if several else ""
        said.append(
            f"Reward of each run {how}, a mean over {found.window}, from {least} to {most} ({axis.unit}){where}."
        )
    elif found.rewards:
        said.append("Not comparable: there is no cost that all runs came by.")
    if found.left_out:
        said.append(f"Left out: {and_list(found.left_out)}; these runs {axis.missing}.")
    return " ".join(said)


def _plot(found: Matched) -> Plot:
    x = found.grid.tolist()
    series = []
    for name, seeds in found.rewards.items():
        rewards = np.stack(list(seeds.values()))
        low, high = (bound.tolist() for bound in bootstrap(rewards)) if len(rewards) > 1 else (None, None)
        series.append(Series(name, x, mean(rewards, axis=0).tolist(), low, high))
    return Plot(found.axis.unit, f"reward{found.reward.whose}", series)
