"""What the tests of training rules share: one policy's batch, and what a rule makes of it alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torch import Tensor

from coevolve.collate import collate, rows_of
from coevolve.types import (
    Algorithm,
    Batch,
    Case,
    Credit,
    Episode,
    Joint,
    Lesson,
    Outputs,
    Problem,
    Reward,
    Row,
    State,
    Targets,
    Turn,
)


def no_reward(cases: Sequence[Case]) -> list[list[float]]:
    raise AssertionError("this credit asks the task for nothing")


def asked(credit: Credit, episode: Episode) -> list[float]:
    """The credits of one episode."""
    [found] = credit([episode], no_reward)
    return found


def collated(episodes: Sequence[Episode], credit: Credit, policy: str) -> Batch:
    """The batch of one policy, its credit by this rule."""
    return collate(rows_of(episodes, credit, no_reward), policy)


def targets_of(algorithm: Algorithm, batch: Batch, state: State | None = None) -> Targets:
    """What the algorithm's advantage makes of a policy that learns alone."""
    return learnt_from(algorithm, batch, state)[0]


def loss_of(algorithm: Algorithm, out: Outputs, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The loss of a policy that learns alone, of the whole batch."""
    objective = algorithm.objective
    return objective.loss(out, batch, targets_of(algorithm, batch), objective.loss_aggregation(batch))


def learnt_from(algorithm: Algorithm, batch: Batch, state: State | None = None) -> tuple[Targets, State]:
    """The same with the next state."""
    before = algorithm.start if state is None else state
    targets, after = algorithm.advantage(Lesson([], {"a": batch}), before)
    return targets["a"], after


def spoke(
    role: str,
    policy: str,
    text: str,
    logp: float = 0.0,
    heard: Sequence[Turn | str] = (),
    problem: str = "p",
    member: int = 0,
) -> Turn:
    """A turn of one token."""
    prompt = [5] if not heard else [5, 6, 5]
    turn = Turn(role, policy, Problem(problem), member, 0, prompt, [7], [logp], text, True)
    turn.peers, turn.heard = (problem, role), tuple(heard)
    return turn


def paid(rewards: Sequence[float], *turns: Turn) -> Episode:
    """An episode of one joint."""
    for turn, reward in zip(turns, rewards, strict=True):
        turn.reward = reward
    return Episode(turns[0].problem, turns[0].member, list(turns), [Joint(turns, tuple(rewards))])


def lesson(algorithm: Algorithm, episodes: Sequence[Episode], reward: Reward = no_reward) -> Lesson:
    """What the trainer would give the algorithm, but for what policies say of their batches."""
    rows = rows_of(episodes, algorithm.credit, reward)
    more: Sequence[Row] = algorithm.rows(episodes, rows) if algorithm.rows else ()
    rows += [dataclasses.replace(row, extra=True) for row in more]
    return Lesson(episodes, {name: collate(rows, name) for name in dict.fromkeys(row.turn.policy for row in rows)})
