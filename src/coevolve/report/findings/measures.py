"""What a run comes to, in the numbers that groups of runs are compared by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coevolve.report.findings.arms import by_seed, kl_weights
from coevolve.report.findings.curves import column, final, mean, peak, smooth, start, window
from coevolve.report.findings.matched import Matched
from coevolve.report.runs import Group, Run
from coevolve.report.wording import and_list, number

_HOW = ("problems", "samples", "temperature", "max_new_tokens", "seed")
"""Keys of ``eval.json`` in which two evaluations must agree for their rewards to mean the same."""

_OWN = "each run's own"
_WEIGHTS = kl_weights, "the weight of the KL"

Way = tuple[Any, ...]
"""Values of ``_HOW``."""


@dataclass(frozen=True)
class Measure:
    """One number per run: group -> seed -> number. agree: what two groups must share for it to mean the same, and what
    it is called. tested: whether differences in it are tests. left_out: a sentence on runs that have it and are not in
    it.
    """

    title: str
    values: Mapping[str, Mapping[int, float]]
    agree: tuple[Callable[[Group], Any], str] | None = None
    tested: bool = True
    left_out: str = ""


def measures(groups: Sequence[Group], matched: Sequence[Matched]) -> list[Measure]:
    """What groups are compared by, of what their runs have."""
    found = [
        _measure("final reward", groups, lambda run: final(column(run, "reward"))),
        _measure("peak reward", groups, lambda run: peak(column(run, "reward"))),
        _measure("mean reward over training", groups, lambda run: float(mean(column(run, "reward")))),
        _measure("r - eta*KL", groups, lambda run: final(column(run, "objective")), _WEIGHTS),
        _held_out(groups),
        *(_at_equal(one) for one in matched if len(one.grid) and not one.alike),
        _half_way(groups),
    ]
    return [measure for measure in found if any(measure.values.values()) or measure.left_out]


def _measure(
    title: str,
    groups: Sequence[Group],
    of: Callable[[Run], float],
    agree: tuple[Callable[[Group], Any], str] | None = None,
) -> Measure:
    values = {group.name: {seed: of(run) for seed, run in by_seed(group).items()} for group in groups}
    return Measure(title, {name: _finite(seeds) for name, seeds in values.items()}, agree)


def _finite(seeds: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in seeds.items() if np.isfinite(value)}


def _held_out(groups: Sequence[Group]) -> Measure:
    """The trained team's mean sampled reward over its roles, by ``eval.json``, of the runs that were evaluated at their
    last step and alike: as most of them were, and of ways that are as common on the most problems."""
    runs = {run.path: run for group in groups for run in group.runs}
    found = {path: one for path, run in runs.items() if (one := run.written("eval.json")) is not None}
    fresh = {path: one for path, one in found.items() if one["checkpoint"] == runs[path].lines[-1]["step"] + 1}
    ways = {path: _ways(runs[path], one) for path, one in fresh.items()}
    count = Counter(way for those in ways.values() for way in those)
    most = max(count, key=lambda way: (count[way], way[0])) if count else ()
    alike = [path for path, those in ways.items() if most in those]
    measure = _measure("held-out reward", groups, lambda run: _paid(fresh[run.path]) if run.path in alike else np.nan)
    said = []
    if stale := [runs[path].name for path in found if path not in fresh]:
        said.append(f"Held-out reward leaves out {and_list(stale)}: `coevolve eval` did not see the last step.")
    if other := [path for path in fresh if path not in alike]:
        keys = [
            key for i, key in enumerate(_HOW) if any(most[i] not in {way[i] for way in ways[path]} for path in other)
        ]
        names = and_list([runs[path].name for path in other])
        said.append(f"Held-out reward leaves out {names}: not evaluated as most runs were, by {and_list(keys)}.")
    return replace(measure, left_out=" ".join(said))


def _ways(run: Run, evaluation: Mapping[str, Any]) -> list[Way]:
    """How a run was evaluated, in words that other runs may share: by random numbers of this seed, and, if that is the
    run's, of its own, which pair as well."""
    way = tuple(evaluation.get(key) for key in _HOW)
    return [way, (*way[:-1], _OWN)] if way[-1] == run.seed else [way]


def _paid(evaluation: Mapping[str, Any]) -> float:
    """What the trained team earns by sampling, the mean over its roles; NaN where none is scored."""
    wanted = {"weights": "trained", "setting": "team", "decoding": "sampled"}
    team = [row for row in evaluation["rows"] if all(row[key] == value for key, value in wanted.items())]
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
