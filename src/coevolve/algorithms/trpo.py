"""A trust region: PPO's adaptive KL penalty in place of its clipped ratio.

Deviations from TRPO are numbered in docs/objectives.md. Letters: B turns, T action tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Literal

from coevolve.algorithms.losses import reused, with_trust
from coevolve.algorithms.ppo import ppo
from coevolve.credit import CreditSpec
from coevolve.late import Tensor, torch
from coevolve.maths.kl import halved_or_doubled, k3
from coevolve.settings import Count, Fraction, NotNegative, Positive, checked_call
from coevolve.types import Algorithm, Batch, Lesson, PolicyName, State, Targets


@checked_call("algorithm")
def trpo(
    *,
    trust: Positive = 0.01,
    eta: NotNegative = 0.3,
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    value_clip: Positive = 0.2,
    value_coef: NotNegative = 0.1,
    epochs: Count = 4,
    minibatch: Count | None = None,
    credit: CreditSpec = "own_reward",
    loss_aggregation: Literal["token", "turn"] = "token",
    penalty: Literal["full", "sampled", "exact"] = "sampled",
    entropy: NotNegative = 0.0,
) -> Algorithm:
    """A trust region as in TRPO, by a KL to the sampling policy in the loss in place of PPO's clipping.

    Its weight is doubled after a step that moved the policy by more than 1.5 times ``trust`` (nats per token), and
    halved after one of less than trust / 1.5 (PPO's adaptive KL penalty, arXiv 1707.06347, section 4). Other settings
    are ``ppo``'s. Raises ValueError for a setting out of range, and without epochs or minibatch: before the first
    optimiser step on a batch the policy has not moved, so that the KL has no gradient (as with a minibatch that is the
    whole batch).
    """
    if not reused(epochs, minibatch):
        raise ValueError("algorithm: trpo's KL has no gradient in the first optimiser step on a batch; set epochs to "
                         "at least 2, or minibatch")  # fmt: skip
    given = {name: value for name, value in locals().items() if name != "trust"}
    made = ppo(**given, clip=_UNCLIPPED)
    objective = dataclasses.replace(made.objective, loss=with_trust(made.objective.loss))

    def advantage(lesson: Lesson, state: State) -> tuple[Mapping[PolicyName, Targets], State]:
        targets, state = made.advantage(lesson, state)
        return {
            name: _trusting(aims, lesson.batches[name], _weight(state, name)) for name, aims in targets.items()
        }, state

    return dataclasses.replace(
        made,
        advantage=advantage,
        objective=objective,
        follow=partial(adapted_trust, target=trust),
        settings={**made.settings, "trust": trust},
    )


_UNCLIPPED = (1.0, 1e9)
"""Clip bounds that no ratio reaches."""


def adapted_trust(
    lesson: Lesson,
    name: PolicyName,
    logp_BT: Tensor,
    targets: Mapping[PolicyName, Targets],
    state: State,
    *,
    target: float,
) -> tuple[Mapping[PolicyName, Targets], State]:
    """Return the targets as they are, and the state with the next weight of the KL, by how far the update has moved the
    policy."""
    batch = lesson.batches[name]
    apart_BT = (batch.logp_BT - logp_BT).masked_fill(~batch.mask_BT, 0.0)
    moved = float(k3(apart_BT).sum() / batch.mask_BT.sum())
    weights = {**state.get("trust", {}), name: halved_or_doubled(_weight(state, name), moved, target)}
    return targets, {**state, "trust": weights}


def _weight(state: State, name: PolicyName) -> float:
    return float(state.get("trust", {}).get(name, 1.0))


def _trusting(aims: Targets, batch: Batch, weight: float) -> Targets:
    columns = {**aims.columns, "trust_B": torch.full((len(batch),), weight)}
    return dataclasses.replace(aims, columns=columns, metrics={**aims.metrics, "trust": weight})
