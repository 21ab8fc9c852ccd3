"""The measures that groups of runs are compared by: one number per run each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coevolve.report.findings.alike import ALL_TURNS, Reward, learners, paying
from coevolve.report.findings.arms import kl_weights, setting
from coevolve.report.findings.curves import column, final, mean, peak
from coevolve.report.findings.matched import KL, Matched
from coevolve.report.runs import Group, Run
from coevolve.report.wording import and_list, number
from coevolve.runs.identity import flat

_HOW = ("problems", "samples", "temperature", "max_new_tokens", "seed")
"""Keys of ``eval.json`` in which two evaluations must agree for their rewards to mean the same."""

_OWN = "each run's own"

Way = tuple[Any, ...]
"""The values of the keys ``_HOW`` in an evaluation."""

Agree = tuple[Callable[[Group], Any], str]
"""(group -> a value that two groups must share for a measure to mean the same in both, the name of that value)"""


def _price(group: Group) -> list[Any]:
    return [kl_weights(group), learners(group)]


def _noise(group: Group) -> list[Any]:
    """Return what the noise of a peak depends on: the largest of noisy means grows with their number and noise."""
    return [{len(run.lines) for run in group.runs}, setting(group, "batch_size"), setting(group, "members")]


_PRICE: Agree = _price, "the weight of the KL or in who learns"
_WEIGHT: Agree = kl_weights, "the weight of the KL"
_SAME_KL: Agree = paying, "roles, play or who learns"
_NOISE: Agree = _noise, "steps, problems or members"


@dataclass(frozen=True)
class Measure:
    """A number for each run: group -> seed -> number. left_out: a sentence on runs that were left out although they
    have the number."""

    title: str
    values: Mapping[str, Mapping[int, float]]
    agree: Agree | None = None
    left_out: str = ""


def measures(groups: Sequence[Group], matched: Sequence[Matched], reward: Reward = ALL_TURNS) -> list[Measure]:
    """Return the measures that groups are compared by, as far as their runs have them."""
    key, whose = reward.metric, reward.whose
    found = [
        _measure(f"final reward{whose}", groups, lambda run: final(column(run, key))),
        _measure(f"peak reward{whose}", groups, lambda run: peak(column(run, key)), _NOISE),
        _measure(f"mean reward over training{whose}", groups, lambda run: float(mean(column(run, key)))),
        *([_objective(groups, reward)] if reward.priced else []),
        _held_out(groups, reward),
        *(_at_equal(one) for one in matched if len(one.grid) and not one.alike),
    ]
    return [measure for measure in found if any(measure.values.values()) or measure.left_out]


def _objective(groups: Sequence[Group], reward: Reward) -> Measure:
    title, agree = f"objective{reward.whose}", _WEIGHT if reward.role else _PRICE
    return _measure(title, groups, lambda run: final(column(run, reward.objective)), agree)


def _measure(
    title: str,
    groups: Sequence[Group],
    of: Callable[[Run], float],
    agree: Agree | None = None,
) -> Measure:
    values = {group.name: {run.seed: of(run) for run in group.runs} for group in groups}
    return Measure(title, {name: _finite(seeds) for name, seeds in values.items()}, agree)


def _finite(seeds: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in seeds.items() if np.isfinite(value)}


def _held_out(groups: Sequence[Group], reward: Reward) -> Measure:
    """Return the held-out reward in ``eval.json``: the mean over the trained team's roles or, if one role is compared,
    over the policies alone; sampled. Only of runs that were evaluated at their last step, and in the way that most of
    them were: of equally common ways, the one with most problems."""
    runs = {run.path: run for group in groups for run in group.runs}
    found = {path: one for path, run in runs.items() if (one := run.written("eval.json")) is not None}
    fresh = {path: one for path, one in found.items() if one["checkpoint"] == runs[path].lines[-1]["step"] + 1}
    ways = {path: _ways(runs[path], one) for path, one in fresh.items()}
    count = Counter(way for those in ways.values() for way in those)
    most = max(count, key=lambda way: (count[way], way[0])) if count else ()
    alike = [path for path, those in ways.items() if most in those]
    paid = {path: _paid(runs[path], fresh[path], reward) for path in alike}
    title = f"held-out reward{' (each policy alone)' if reward.role else ''}"
    measure = _measure(title, groups, lambda run: paid.get(run.path, np.nan))
    said = []
    if reward.role and (silent := [runs[path].name for path, one in paid.items() if np.isnan(one)]):
        said.append(
            f"Held-out reward leaves out {and_list(silent)}: no policy that learns was played alone as {reward.role}."
        )
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
    """Return the ways in which a run was evaluated that other runs may share: with this evaluation seed and, if it is
    the run's own seed, with "each run's own", since those runs form pairs as well."""
    way = tuple(evaluation.get(key) for key in _HOW)
    return [way, (*way[:-1], _OWN)] if way[-1] == run.seed else [way]


def _paid(run: Run, evaluation: Mapping[str, Any], reward: Reward) -> float:
    """Return the trained team's mean reward over its roles, sampled, or, if one role is compared, that of the policies
    that learn, each alone in this role; NaN where no row has a reward."""
    wanted = {"weights": "trained", "setting": "alone" if reward.role else "team", "decoding": "sampled"}
    rows = [row for row in evaluation["rows"] if all(row[key] == value for key, value in wanted.items())]
    if reward.role:
        recipe = flat(run.recipe)
        frozen = {row["policy"] for row in rows if recipe.get(f"policies.{row['policy']}.weights") == "frozen"}
        rows = [row for row in rows if row["role"] == reward.role and row["policy"] not in frozen]
    paid = [row["reward"] for row in rows if row["role"] != "all" and row.get("reward") is not None]
    return float(np.mean(paid)) if paid else np.nan


def _at_equal(found: Matched) -> Measure:
    title = f"{found.axis.at.format(number(found.grid[-1]))}{found.reward.whose}"
    values = {name: {seed: float(paid[-1]) for seed, paid in seeds.items()} for name, seeds in found.rewards.items()}
    of_all = found.axis.id == KL.id and found.reward.kl == ALL_TURNS.kl
    return Measure(title, values, _SAME_KL if of_all else None)
