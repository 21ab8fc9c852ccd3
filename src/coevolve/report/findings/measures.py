"""What a run comes to, in the numbers that groups of runs are compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coevolve.report.findings.arms import ETA, by_seed
from coevolve.report.findings.curves import column, final, mean, peak, smooth, start, window
from coevolve.report.findings.matched import Matched
from coevolve.report.runs import Group, Run
from coevolve.report.wording import number


@dataclass(frozen=True)
class Measure:
    """One number per run: group -> seed -> number. agree: a key of the recipe that two groups must share for it to mean
    the same. tested: whether differences in it are tests."""

    title: str
    values: Mapping[str, Mapping[int, float]]
    agree: str | None = None
    tested: bool = True


def measures(groups: Sequence[Group], matched: Sequence[Matched]) -> list[Measure]:
    """What groups are compared by, of what their runs have."""
    found = [
        _measure("final reward", groups, lambda run: final(column(run, "reward"))),
        _measure("peak reward", groups, lambda run: peak(column(run, "reward"))),
        _measure("mean reward over training", groups, lambda run: float(mean(column(run, "reward")))),
        _measure("r - eta*KL", groups, lambda run: final(column(run, "objective")), agree=ETA),
        _measure("held-out reward", groups, held_out),
        *(_at_equal(one) for one in matched if len(one.grid) and not one.alike),
        _half_way(groups),
    ]
    return [measure for measure in found if any(measure.values.values())]


def _measure(title: str, groups: Sequence[Group], of: Callable[[Run], float], agree: str | None = None) -> Measure:
    values = {group.name: {seed: of(run) for seed, run in by_seed(group).items()} for group in groups}
    return Measure(title, {name: _finite(seeds) for name, seeds in values.items()}, agree)


def _finite(seeds: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in seeds.items() if np.isfinite(value)}


def held_out(run: Run) -> float:
    """The trained team's mean sampled reward over its roles, by ``eval.json``; NaN without it."""
    rows = (run.written("eval.json") or {"rows": []})["rows"]
    wanted = {"weights": "trained", "setting": "team", "decoding": "sampled"}
    team = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    paid = [row["reward"] for row in team if row["role"] != "all" and row.get("reward") is not None]
    return float(np.mean(paid)) if paid else np.nan


def _at_equal(found: Matched) -> Measure:
    title = found.axis.at.format(number(found.grid[-1]))
    return Measure(title, {name: {s: float(y[-1]) for s, y in seeds.items()} for name, seeds in found.rewards.items()})


def _half_way(groups: Sequence[Group]) -> Measure:
    """Samples to a shared level (or steps, where a run does not count its turns), of the runs that reach it: half of
    the highest rise of any run."""
    curves = [column(run, "reward") for group in groups for run in group.runs]
    begin = float(mean(np.array([start(curve) for curve in curves])))
    level = begin + (float(np.fmax.reduce([peak(curve) for curve in curves])) - begin) / 2
    counted = not any(np.isnan(column(run, "turns")).any() for group in groups for run in group.runs)

    def spent(run: Run) -> float:
        reward = column(run, "reward")
        cost = np.cumsum(column(run, "turns") if counted else np.ones(len(reward)))[window(len(reward)) - 1 :]
        reached = np.flatnonzero((smooth(reward) >= level) & (level > begin))
        return float(cost[reached[0]]) if len(reached) else np.nan

    unit = "turns sampled" if counted else "steps"
    found = _measure(f"{unit} to reward {number(level)}, of the seeds that reach it", groups, spent)
    return Measure(found.title, found.values, tested=False)
