"""Metrics of a step: numbers of the team and of each policy, means over the step's turns.

KL is in nats per turn (summed over its tokens), the objective is reward - eta * KL, lengths are in tokens. The team's
KL and objective are means over the policies that speak and learn, its reward is over all turns: so they weigh turns
differently if policies speak unequally often or some are frozen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from torch import Tensor

from coevolve.faults import blame
from coevolve.files import shown
from coevolve.interfaces import Task
from coevolve.maths.masked import explained_variance
from coevolve.pay import LARGEST, is_payable
from coevolve.types import Batch, Case, Episode, Joint, Metrics, PolicyName, Targets, ToolResult, Turn

_PRICED = ("kl", "objective")


class Clock:
    """A timer of phases: ``with clock("reward"): ...`` adds to the seconds of this phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def spoken(turns: Sequence[Turn]) -> Metrics:
    """Return metrics of turns: their number, reward, length, share that ended with an end of sequence, diversity.

    Under truncated sampling also excess: nats per token between the distribution sampled from and the one scored. With
    tool results in prompts also tool_errors: the share of failed calls.
    """
    actions = [turn.action_ids for turn in turns]
    tokens = sum(len(ids) for ids in actions)
    found = {"reward": mean_reward(turns)} if any(turn.reward is not None for turn in turns) else {}
    if any(turn.excess for turn in turns):
        found["excess"] = sum(turn.excess for turn in turns) / tokens
    if results := [part for turn in turns for part in turn.heard if isinstance(part, ToolResult)]:
        found["tool_errors"] = fmean(result.failed for result in results)
    return found | {
        "turns": len(turns),
        "length": tokens / len(turns),
        "eos_rate": fmean(turn.finished for turn in turns),
        "distinct_1": distinct(actions, 1),
        "distinct_2": distinct(actions, 2),
    }


def distinct(sequences: Sequence[Sequence[Hashable]], n: int) -> float:
    """Return different n-grams / all n-grams over all sequences together (arXiv 1510.03055, section 5.2).

    NaN if no sequence is n long. It falls with the number of sequences, so compare equal batches only.
    """
    assert n >= 1, n
    grams = [tuple(s[i : i + n]) for s in sequences for i in range(len(s) - n + 1)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def mean_reward(turns: Iterable[Turn]) -> float:
    """Return the mean reward of the turns that were scored."""
    return fmean(turn.reward for turn in turns if turn.reward is not None)


def learnt(batch: Batch, targets: Targets) -> Metrics:
    """Return metrics of a described batch before its update: KL and objective, of all turns and by role
    (``kl/pioneer``), and the explained variance of the critic."""
    said_B = ~batch.extra_B  # extra rows were not sampled from their prompts
    credit = {"credit": float(batch.credit_B[said_B].mean())} if bool(said_B.any()) else {}
    metrics = {**credit, "eta": targets.eta, **targets.metrics}
    metrics |= _priced(batch, said_B, targets.eta)
    for number, role in enumerate(batch.roles):
        of_role = _priced(batch, said_B & (batch.role_B == number), targets.eta)
        metrics |= {f"{name}/{role}": value for name, value in of_role.items()}
    if batch.value_BT is not None and targets.return_BT is not None:
        found = float(explained_variance(batch.value_BT, targets.return_BT, batch.mask_BT))
        metrics.setdefault("explained_variance", found)  # an algorithm may have computed it over the right values only
    return metrics


def _priced(batch: Batch, rows_B: Tensor, eta: float) -> Metrics:
    """Return KL and objective (reward - eta * KL) of some rows; empty without a reference, and for a judge or
    critic, which samples no turns."""
    if batch.kl_BT is None or not bool(rows_B.any()):
        return {}
    kl = float(batch.kl_BT.sum(1)[rows_B].mean())
    paid = float(batch.reward_B[rows_B].nanmean())
    return {"kl": kl} if math.isnan(paid) else {"kl": kl, "objective": paid - eta * kl}


def interaction(episodes: Sequence[Episode], stops: bool = False) -> Metrics:
    """Return metrics of joints: the reward at each depth, if there are several, and the means of ``Episode.parts``.

    stops: whether episodes may end early; then the first depth's reward is told of steps in which all did, too, which
    are the best ones."""
    levels: dict[int, list[float]] = {}
    for episode in episodes:
        for depth, joint in zip(episode.depths(), episode.joints, strict=True):
            levels.setdefault(depth, []).append(fmean(joint.by_role().values()))
    told = len(levels) > 1 or stops
    found = {f"turn/{level + 1}/reward": fmean(paid) for level, paid in levels.items() if told}
    return found | means([episode.parts for episode in episodes])


def means(some: Sequence[Mapping[str, float]]) -> Metrics:
    """Return each name's mean over the mappings that have it: some problems may lack a part of the reward."""
    names = dict.fromkeys(name for one in some for name in one)
    return {name: fmean(one[name] for one in some if name in one) for name in names}


def endings(episode: Episode) -> list[tuple[Joint, float]]:
    """Return the final joints, which no other continues, with their weights, which sum to 1.

    The continuations of a joint share its weight evenly. Where one of several joints was chosen to continue, without
    the later reward in its return (``best_of``), the others do not count.
    """
    below: dict[int | None, list[int]] = {}
    for number, joint in enumerate(episode.joints):
        below.setdefault(joint.after, []).append(number)
    found = []
    waiting = [(below[None], 1.0)]
    while waiting:
        siblings, weight = waiting.pop(0)
        chosen = [i for i in siblings if any(not episode.joints[j].answered for j in below.get(i, ()))]
        going = chosen or siblings
        for i in going:
            if i in below:
                waiting.append((below[i], weight / len(going)))
            else:
                found.append((episode.joints[i], weight / len(going)))
    return found


def outcome(episode: Episode) -> float:
    """Return the episode's outcome: the weighted mean of its final joints' rewards, each the mean over its roles."""
    return sum(fmean(joint.by_role().values()) * share for joint, share in endings(episode))


def note_parts(episodes: Sequence[Episode], task: Task) -> None:
    """Set ``parts`` of every episode to the task's components of its reward."""
    for episode, parts in zip(episodes, episode_parts(episodes, task), strict=True):
        episode.parts = parts


def episode_parts(episodes: Sequence[Episode], task: Task) -> list[Metrics]:
    """Return ``parts/<name>`` of every episode: the task's components, weighted over the final joints that have them.

    Raises ValueError, naming the problem, for parts that are no mapping from names to finite numbers.
    """
    if not episodes or not hasattr(task, "parts"):
        return [{} for _ in episodes]
    ended = [(number, episode, *end) for number, episode in enumerate(episodes) for end in endings(episode)]
    cases = [Case(e.problem, joint.turns, e.history(joint.after)) for _, e, joint, _ in ended]
    with blame(f"the parts of {type(task).__name__}"):
        given = task.parts(cases)
    parts = _checked_parts(cases, given, type(task).__name__)
    sums: list[dict[str, tuple[float, float]]] = [{} for _ in episodes]
    for (number, _, _, weight), part in zip(ended, parts, strict=True):
        for name, value in part.items():
            total, weights = sums[number].get(name, (0.0, 0.0))
            sums[number][name] = total + float(value) * weight, weights + weight
    return [{f"parts/{name}": _weighed(*over) for name, over in one.items()} for one in sums]


def _weighed(total: float, weights: float) -> float:
    """Return a weighted mean. The weights of all endings are 1, but for rounding, which shall not change the mean."""
    return total if math.isclose(weights, 1.0) else total / weights


def _checked_parts(cases: Sequence[Case], parts: Any, task: str) -> Sequence[Mapping[str, float]]:
    if not isinstance(parts, Sequence) or len(parts) != len(cases):
        raise ValueError(f"the parts of {task}: want a list with one mapping per case, {len(cases)} of them")
    for case, part in zip(cases, parts, strict=True):
        where = f"the parts of {task} on problem {case.problem.id!r}"
        if not isinstance(part, Mapping):
            raise ValueError(f"{where} are {part!r}; want a mapping from names to numbers")
        for name, value in part.items():
            if not is_payable(value):
                raise ValueError(
                    f"{where}: {name} is {shown(value)}; want a finite number, at most {LARGEST:g} in size"
                )
    return parts


def step_metrics(
    episodes: Sequence[Episode], updates: Mapping[PolicyName, Metrics], clock: Clock, stops: bool = False
) -> Metrics:
    """Return the metrics of a step: of the team, then each role's reward, KL and objective, each policy's numbers under
    agents/<policy>/, and times.

    updates: the metrics of each policy's update. stops: as in ``interaction``.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    agents = _by_policy(turns, updates)
    line = spoken(turns) | interaction(episodes, stops)
    roles = list(dict.fromkeys(turn.role for turn in turns))
    for role in roles:
        if scored := [turn for turn in turns if turn.role == role and turn.reward is not None]:
            line[f"reward/{role}"] = mean_reward(scored)
    of_roles = [f"{name}/{role}" for role in roles for name in _PRICED]
    for name in (*_PRICED, *of_roles):
        values = [metrics[name] for metrics in agents.values() if name in metrics]
        if values:
            line[name] = fmean(values)
    for policy, metrics in agents.items():
        line |= {f"agents/{policy}/{name}": value for name, value in metrics.items() if name not in of_roles}
    line |= {f"time/{phase}": seconds for phase, seconds in clock.seconds.items()}
    if clock.seconds["step"] > 0:  # 0 for a step shorter than the clock's resolution
        line["tokens_per_second"] = sum(len(turn.action_ids) for turn in turns) / clock.seconds["step"]
    return line


def _by_policy(turns: Sequence[Turn], updates: Mapping[PolicyName, Metrics]) -> dict[PolicyName, Metrics]:
    """Return the metrics of each policy's turns and update. A policy that neither spoke nor learnt is left out."""
    said: dict[PolicyName, list[Turn]] = {}
    for turn in turns:
        said.setdefault(turn.policy, []).append(turn)
    agents = {name: spoken(some) for name, some in said.items()}
    return agents | {name: agents.get(name, {}) | metrics for name, metrics in updates.items()}
