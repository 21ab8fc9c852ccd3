"""Reward at equal cost: the same samples, gradient steps or KL.

Every run is a curve of its smoothed reward over what it has spent. KL goes up and down, so its curve is the reward when
the run first spent that much. Runs are compared where all of them have been, and nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coevolve.report.findings.alike import ALL_TURNS, Reward
from coevolve.report.findings.curves import column, mean, of_agents, smooth, window
from coevolve.report.findings.statistics import Floats, bootstrap, estimate
from coevolve.report.runs import Group, Run
from coevolve.report.section import Plot, Section, Series
from coevolve.report.wording import and_list, number

_POINTS = 61  # so that quarters fall on points
_QUARTERS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Axis:
    """What is spent. unit: the title of the cost. at: what the reward at some cost is called. adds_up: the cost only
    grows. missing: what is said of runs without it. spent: run -> the cost after each smoothed step, NaN where it is
    not known."""

    id: str
    title: str
    unit: str
    at: str
    adds_up: bool
    missing: str
    spent: Callable[[Run], Floats]


@dataclass(frozen=True)
class Matched:
    """Curves on a common grid of costs, of the seeds that have one: group -> seed -> reward at each cost.

    reward: which one. left_out: runs that do not say what they spent. alike: all runs spent the same in the end.
    caution: what is to be said of the cost.
    """

    axis: Axis
    reward: Reward
    grid: Floats
    rewards: Mapping[str, Mapping[int, Floats]]
    left_out: Sequence[str]
    alike: bool
    caution: str


def _turns(run: Run) -> Floats:
    return np.cumsum(column(run, "turns"))[window(len(run.lines)) - 1 :]


def _updates(run: Run) -> Floats:
    known = [updates for updates in of_agents(run, "updates") if not np.isnan(updates).all()]
    if not known:
        return np.full(len(run.lines) - window(len(run.lines)) + 1, np.nan)
    return np.cumsum(np.nansum(known, axis=0))[window(len(run.lines)) - 1 :]


def _kl(run: Run) -> Floats:
    return smooth(column(run, "kl"))


SAMPLES = Axis(
    "samples",
    "Reward at equal samples",
    "turns sampled by all agents",
    "reward at {} turns sampled",
    True,
    "do not count their turns",
    _turns,
)
UPDATES = Axis(
    "updates",
    "Reward at equal gradient steps",
    "gradient steps of all agents",
    "reward at {} gradient steps",
    True,
    "do not count their gradient steps",
    _updates,
)
KL = Axis(
    "kl",
    "Reward against KL",
    "KL to the start, nats per turn",
    "reward at a KL of {} nats",
    False,
    "have no reference, and so no KL",
    _kl,
)


def costs(groups: Sequence[Group], reward: Reward = ALL_TURNS) -> list[Matched]:
    """Every axis; samples and gradient steps as one where they tell the same."""
    axes = SAMPLES, UPDATES, replace(KL, spent=lambda run: smooth(column(run, reward.kl)))
    samples, updates, kl = (match(axis, groups, reward) for axis in axes)
    if samples.left_out == updates.left_out and _proportional(groups):
        both = replace(SAMPLES, title="Reward at equal samples, and so at equal gradient steps")
        return [replace(samples, axis=both), kl]
    return [samples, updates, kl]


def match(axis: Axis, groups: Sequence[Group], reward: Reward = ALL_TURNS) -> Matched:
    """The runs' curves on the costs that all of them came by; without a grid where there are none."""
    curves: dict[str, dict[int, tuple[Floats, Floats]]] = {}
    left_out = []
    for group in groups:
        for run in group.runs:
            cost, paid = curve(axis, run, reward.metric)
            if len(cost):
                curves.setdefault(group.name, {})[run.seed] = cost, paid
            else:
                left_out.append(run.name)
    every = [cost for seeds in curves.values() for cost, _ in seeds.values()]
    low, high = (max(c[0] for c in every), min(c[-1] for c in every)) if every else (0.0, -1.0)
    grid = np.unique(np.linspace(low, high, _POINTS)) if low <= high else np.array([])
    rewards = {
        name: {seed: np.interp(grid, cost, paid) for seed, (cost, paid) in seeds.items()}
        for name, seeds in curves.items()
    }
    alike = axis.adds_up and len({cost[-1] for cost in every}) == 1
    caution = reward.of_kl(groups) if axis.id == KL.id else ""
    return Matched(axis, reward, grid, rewards, left_out, alike, caution)


def curve(axis: Axis, run: Run, key: str = "reward") -> tuple[Floats, Floats]:
    """Cost and a smoothed metric where the cost is a new record, of the steps that know both."""
    cost, value = axis.spent(run), smooth(column(run, key))
    known = ~(np.isnan(cost) | np.isnan(value))
    cost, value = cost[known], value[known]
    before = np.maximum.accumulate(np.concatenate([[-np.inf], cost]))[:-1]
    return cost[cost > before], value[cost > before]


def section(found: Matched) -> Section:
    """A table at the quarters of the common range, and the groups' mean curves with their bands."""
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
        said.append(f"Smoothed reward of each run {how}, from {least} to {most} ({axis.unit}){where}.")
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


def _proportional(groups: Sequence[Group]) -> bool:
    """At every step of every run that counts both there are as many gradient steps a sample."""
    ratios = np.concatenate([_updates(run) / _turns(run) for group in groups for run in group.runs])
    known = ratios[~np.isnan(ratios)]
    return len(known) > 0 and bool(np.isclose(known, known[0]).all())
