"""What one step is measured by: team-level and per-policy numbers, all means over this step's turns.

KL is in nats per turn (summed over its tokens), the objective is reward - eta * KL, lengths are in tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean

from coevolve.maths.diversity import distinct
from coevolve.maths.masked import explained_variance, mean
from coevolve.types import Batch, Case, Episode, Joint, Metrics, Targets, Task, Turn


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
    """What the turns themselves say: reward, length, share that ended by itself, diversity.

    Under truncated sampling also excess: nats per token between what was drawn from and what is scored.
    """
    actions = [turn.action_ids for turn in turns]
    tokens = sum(len(ids) for ids in actions)
    excess = {"excess": sum(t.excess for t in turns) / tokens} if any(t.excess for t in turns) else {}
    return excess | {
        "reward": fmean(turn.reward or 0.0 for turn in turns),
        "length": tokens / len(turns),
        "eos_rate": fmean(turn.finished for turn in turns),
        "distinct_1": distinct(actions, 1),
        "distinct_2": distinct(actions, 2),
    }


def learnt(batch: Batch, targets: Targets, eta: float) -> Metrics:
    """What the annotated batch says before its update: KL, objective, entropy, how good the critic was."""
    metrics = {"credit": float(batch.credit_B.mean()), "eta": eta, **targets.metrics}
    if batch.entropy_BT is not None:
        metrics["entropy"] = float(mean(batch.entropy_BT, batch.mask_BT))
    if batch.kl_BT is not None:
        metrics["kl"] = float(batch.kl_BT.sum(1).mean())
        metrics["objective"] = float(batch.reward_B.mean()) - eta * metrics["kl"]
    if batch.value_BT is not None and targets.return_BT is not None:
        metrics["explained_variance"] = float(explained_variance(batch.value_BT, targets.return_BT, batch.mask_BT))
    return metrics


def interaction(episodes: Sequence[Episode], task: Task) -> Metrics:
    """What the joints say: the reward of each turn of the interaction, and the task's parts of its end."""
    levels: dict[int, list[float]] = {}
    for episode in episodes:
        depth: list[int] = []
        for joint in episode.joints:
            depth.append(0 if joint.after is None else depth[joint.after] + 1)
            levels.setdefault(depth[-1], []).append(fmean(joint.rewards))
    found = {f"turn/{level + 1}/reward": fmean(paid) for level, paid in levels.items()} if len(levels) > 1 else {}
    return found | mean_parts(endings(episodes), task)


def endings(episodes: Sequence[Episode]) -> list[tuple[Episode, Joint]]:
    """The joints that nothing continues: what the interactions came to."""
    found = []
    for episode in episodes:
        continued = {joint.after for joint in episode.joints}
        found += [(episode, joint) for number, joint in enumerate(episode.joints) if number not in continued]
    return found


def mean_parts(joints: Sequence[tuple[Episode, Joint]], task: Task) -> Metrics:
    """``parts/<name>``: the mean of each of the task's components over these joints; empty where it names none."""
    if not hasattr(task, "parts"):
        return {}
    parts = task.parts([Case(episode.problem, joint.turns, episode.history(joint.after)) for episode, joint in joints])
    return {f"parts/{name}": fmean(case[name] for case in parts) for name in parts[0]}


def step_metrics(episodes: Sequence[Episode], agents: Mapping[str, Metrics], task: Task, clock: Clock) -> Metrics:
    """One flat line: the team first, then each role's reward, each policy's numbers under agents/<policy>/, times."""
    turns = [turn for episode in episodes for turn in episode.turns]
    line = spoken(turns) | interaction(episodes, task)
    for name in ("kl", "objective"):
        values = [metrics[name] for metrics in agents.values() if name in metrics]
        if values:
            line[name] = fmean(values)
    for role in dict.fromkeys(turn.role for turn in turns):
        line[f"reward/{role}"] = fmean(turn.reward or 0.0 for turn in turns if turn.role == role)
    for policy, metrics in agents.items():
        line |= {f"agents/{policy}/{name}": value for name, value in metrics.items()}
    line |= {f"time/{phase}": seconds for phase, seconds in clock.seconds.items()}
    line["tokens_per_second"] = sum(len(turn.action_ids) for turn in turns) / clock.seconds["step"]
    return line
