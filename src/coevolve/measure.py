"""What one step is measured by: team-level and per-policy numbers, means over this step's turns.

KL is in nats per turn (summed over its tokens), the objective is reward - eta * KL, lengths are in tokens. The team's
KL and objective are means over the policies that speak and learn, its reward is over all turns: they differ in which
turns count where policies speak unequally often or somebody is frozen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from torch import Tensor

from coevolve.faults import blame
from coevolve.files import shown
from coevolve.interfaces import Task
from coevolve.maths.diversity import distinct
from coevolve.maths.masked import explained_variance
from coevolve.pay import LARGEST, is_payable
from coevolve.types import Batch, Case, Episode, Joint, Metrics, PolicyName, Targets, ToolResult, Turn

_PRICED = ("kl", "objective")


class Clock:
    """Seconds by phase: ``with clock("reward"): ...`` adds up."""

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
    """What the turns themselves say: how many, reward, length, share that ended by itself, diversity.

    Under truncated sampling also excess: nats per token between what was drawn from and what is scored. Where results
    of tools were heard also tool_errors: the share of them that are reasons why there is none.
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


def mean_reward(turns: Iterable[Turn]) -> float:
    """Over the turns that somebody scored."""
    return fmean(turn.reward for turn in turns if turn.reward is not None)


def learnt(batch: Batch, targets: Targets) -> Metrics:
    """What the described batch says before its update: KL and objective, of all turns and by role (``kl/pioneer``), how
    good the critic was."""
    metrics = {"credit": float(batch.credit_B.mean()), "eta": targets.eta, **targets.metrics}
    said_B = ~batch.extra_B  # extra: not sampled from its prompt
    metrics |= _priced(batch, said_B, targets.eta)
    for number, role in enumerate(batch.roles):
        of_role = _priced(batch, said_B & (batch.role_B == number), targets.eta)
        metrics |= {f"{name}/{role}": value for name, value in of_role.items()}
    if batch.value_BT is not None and targets.return_BT is not None:
        found = float(explained_variance(batch.value_BT, targets.return_BT, batch.mask_BT))
        metrics.setdefault("explained_variance", found)  # a rule may know better which of its values count
    return metrics


def _priced(batch: Batch, rows_B: Tensor, eta: float) -> Metrics:
    """KL, and reward less the weighted KL, of some rows. A judge or critic that only reads says nothing."""
    if batch.kl_BT is None or not bool(rows_B.any()):
        return {}
    kl = float(batch.kl_BT.sum(1)[rows_B].mean())
    paid = float(batch.reward_B[rows_B].nanmean())
    return {"kl": kl} if math.isnan(paid) else {"kl": kl, "objective": paid - eta * kl}


def interaction(episodes: Sequence[Episode]) -> Metrics:
    """What the joints say: the reward of each turn of the interaction, and the means of the episodes' parts."""
    levels: dict[int, list[float]] = {}
    for episode in episodes:
        for depth, joint in zip(episode.depths(), episode.joints, strict=True):
            levels.setdefault(depth, []).append(fmean(joint.by_role().values()))
    found = {f"turn/{level + 1}/reward": fmean(paid) for level, paid in levels.items()} if len(levels) > 1 else {}
    return found | means([episode.parts for episode in episodes])


def means(some: Sequence[Mapping[str, float]]) -> Metrics:
    """Of each name, the mean over those that have it: a part of a reward need not be one of every problem."""
    names = dict.fromkeys(name for one in some for name in one)
    return {name: fmean(one[name] for one in some if name in one) for name in names}


def endings(episode: Episode) -> list[tuple[Joint, float]]:
    """What the interaction came to: the joints that nothing continues, and how much each counts, 1 in all.

    The continuations of one joint share its weight evenly. Where one of several was chosen to go on without answering
    for what follows (``best_of``), the others led nowhere and do not count.
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
    """The return: what the endings paid, the mean over the agents of each."""
    return sum(fmean(joint.by_role().values()) * share for joint, share in endings(episode))


def note_parts(episodes: Sequence[Episode], task: Task) -> None:
    """Write down in every episode what it came to."""
    for episode, parts in zip(episodes, episode_parts(episodes, task), strict=True):
        episode.parts = parts


def episode_parts(episodes: Sequence[Episode], task: Task) -> list[Metrics]:
    """``parts/<name>`` of every episode: each of the task's components, weighed over the endings that have it.

    Raises ValueError, which names the problem, for parts that are no mapping from names to finite numbers.
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
    return [{f"parts/{name}": total / weights for name, (total, weights) in one.items()} for one in sums]


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


def step_metrics(episodes: Sequence[Episode], updates: Mapping[PolicyName, Metrics], clock: Clock) -> Metrics:
    """One flat line: the team first, then each role's reward, KL and objective, each policy's numbers under
    agents/<policy>/, times.

    updates: what each policy's update said.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    agents = _by_policy(turns, updates)
    line = spoken(turns) | interaction(episodes)
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
    if clock.seconds["step"] > 0:  # a clock may stand still for a short step; then nobody knows how fast it was
        line["tokens_per_second"] = sum(len(turn.action_ids) for turn in turns) / clock.seconds["step"]
    return line


def _by_policy(turns: Sequence[Turn], updates: Mapping[PolicyName, Metrics]) -> dict[PolicyName, Metrics]:
    """What each policy said, and what its update did. Who was cast and did not speak is in neither."""
    said: dict[PolicyName, list[Turn]] = {}
    for turn in turns:
        said.setdefault(turn.policy, []).append(turn)
    agents = {name: spoken(some) for name, some in said.items()}
    return agents | {name: agents.get(name, {}) | metrics for name, metrics in updates.items()}
