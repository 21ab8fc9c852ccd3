"""What the tests of training rules share: one policy's batch, and what a rule makes of it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from coevolve.collate import collate, rows_of
from coevolve.types import Algorithm, Batch, Case, Credit, Episode, Lesson, Outputs, State, Targets


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
