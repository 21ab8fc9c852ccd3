"""The opening of a report: what was trained, the result, and the alarms, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coevolve.report.findings import ends
from coevolve.report.findings.alarms import SHORTEST, alarms
from coevolve.report.findings.alike import ALL_TURNS, Reward, compared, unlike
from coevolve.report.findings.arms import arms, task
from coevolve.report.findings.curves import column, final, start
from coevolve.report.findings.statistics import Floats
from coevolve.report.runs import Group, Run
from coevolve.report.wording import and_list, many, number, plus_minus

_MEANS = "Means over the first and the last tenth of the steps and over seeds, with the standard error over seeds."
_UNLIKE = " The curves are means over all turns, which are unlike in these teams."
_TOLD = 6  # most groups of runs that are described one by one


@dataclass(frozen=True)
class Opening:
    """The opening's texts. trained, came: a sentence each, on the runs and their rewards. footnote: what the numbers
    are. alarms: one line each. judged: whether any run was long enough for alarms."""

    trained: str
    came: str
    footnote: str
    alarms: Sequence[str]
    judged: bool


def opening(runs: Sequence[Run]) -> Opening:
    """Return the opening of a report of these runs."""
    groups = arms(runs)
    trained = _one(runs[0]) if len(runs) == 1 else _several(groups)
    came = ends.sentence(runs[0].lines) if len(runs) == 1 else _each(groups)
    footnote = ends.footnote(runs[0].lines) if len(runs) == 1 else f"{_MEANS}{_UNLIKE if unlike(groups) else ''}"
    judged = any(len(run.lines) >= SHORTEST for run in runs)
    return Opening(trained, came, footnote, list(_alarms(runs)), judged)


def _one(run: Run) -> str:
    recipe = run.recipe
    learners, others = _agents(run)
    beside = f", beside {and_list(others)}" if others else ""
    said = f"{and_list(learners) or 'nobody'} learnt {_named(recipe.get('task')) or 'a task'}"
    size = f"{many(len(run.lines), 'step')}{_of_problems(recipe)}, seed {run.seed}"
    return f"{' '.join([said, *_how(recipe)])}{beside}: {size}."


def _agents(run: Run) -> tuple[list[str], list[str]]:
    """Return who learnt, ``ann and bob (coevolve-tiny)``, and who did not, ``eve (coevolve-tiny, frozen)``; only names
    if the models are unknown."""
    found = run.recipe.get("policies")
    if not isinstance(found, Mapping) or not all(isinstance(spec, Mapping) for spec in found.values()):
        return run.policies or ["a team"], []
    alike: dict[str, list[str]] = {}
    for name, spec in found.items():
        alike.setdefault(", ".join(_spec(spec)), []).append(str(name))
    told = {spec: f"{and_list(names)} ({spec})" for spec, names in alike.items()}
    frozen = {", ".join(_spec(spec)) for spec in found.values() if spec.get("weights") == "frozen"}
    return [one for spec, one in told.items() if spec not in frozen], [told[spec] for spec in told if spec in frozen]


def _spec(spec: Mapping[str, Any]) -> Iterator[str]:
    yield str(spec.get("model", "?"))
    if (weights := spec.get("weights", "full")) != "full":
        yield {"lora": "LoRA"}.get(weights, str(weights))


def _how(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``as pioneer and observer``, ``in the play chain``, ``by CORY``, as far as the recipe has them."""
    if isinstance(roles := recipe.get("roles"), Mapping) and roles:
        yield f"as {and_list(list(map(str, roles)))}"
    if play := _named(recipe.get("play")):
        yield f"in the play {play.partition('.<locals>')[0]}"  # a function's name, if a program started the run
    if rule := _named(recipe.get("algorithm")):
        yield f"by {rule.upper() if rule.isidentifier() else rule}"  # a path names a user's own algorithm


def _of_problems(recipe: Mapping[str, Any]) -> str:
    problems, members = recipe.get("batch_size"), recipe.get("members", 1)
    if not isinstance(problems, int):
        return ""
    times = f", each played {members} times" if isinstance(members, int) and members > 1 else ""
    return f" of {many(problems, 'problem')}{times}"


def _named(component: Any) -> str:
    """Return the name of a recipe's component, which is given as a name or as a mapping with one; empty if missing."""
    found = component.get("name") if isinstance(component, Mapping) else component
    return str(found) if found else ""


def _several(groups: Sequence[Group]) -> str:
    sizes = [f"{group.name} ({many(len(group.runs), 'seed')})" for group in groups[:_TOLD]]
    more = [f"{len(groups) - _TOLD} more"] if len(groups) > _TOLD else []
    tasks = and_list(sorted({task(group) for group in groups} - {""}))
    return f"{many(sum(len(group.runs) for group in groups), 'run')}{f' on {tasks}' if tasks else ''}: " + (
        f"{and_list([*sizes, *more])}."
    )


def _each(groups: Sequence[Group]) -> str:
    """Return the reward of each group at the start and at the end, as means over seeds."""
    reward = compared(groups) or ALL_TURNS
    said = [
        f"{group.name} from {_mean(group, reward, start)} to {_mean(group, reward, final)}" for group in groups[:_TOLD]
    ]
    more = ["the others are in the findings"] if len(groups) > _TOLD else []
    whose = " (each team's own turns, which are unlike)" if unlike(groups) and not reward.role else reward.whose
    return f"Reward{whose}: {'; '.join([*said, *more])}."


def _mean(group: Group, reward: Reward, of: Callable[[Floats], float]) -> str:
    values = np.array([of(column(run, reward.metric)) for run in group.runs])
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return plus_minus(float(values.mean()), error) if np.isfinite(values).all() else number(None)


def _alarms(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        for one in alarms(run):
            where = f"{run.name}: " if len(runs) > 1 else ""
            since = f"first at step {one.step}" if one.limit is None else f"from step {one.step} on"
            yield f"{where}{one.signal} ({one.agent}), {since}"
