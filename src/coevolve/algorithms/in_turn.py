"""Policies that learn one after the other: HAPPO, and a trust region by KL.

Deviations from their papers are numbered in docs/objectives.md. Letters: B turns, T action tokens, J joints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Literal

from coevolve.algorithms.losses import with_trust
from coevolve.algorithms.ppo import ppo
from coevolve.credit import CreditSpec
from coevolve.late import Tensor, torch
from coevolve.maths.kl import halved_or_doubled, k3
from coevolve.settings import Count, Fraction, NotNegative, Positive, checked_call
from coevolve.types import Algorithm, Batch, Lesson, PolicyName, State, Targets


@checked_call("algorithm")
def happo(
    *,
    eta: NotNegative = 0.3,
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    clip: Positive | tuple[Positive, Positive] = 0.2,
    value_clip: Positive = 0.2,
    value_coef: NotNegative = 0.1,
    epochs: Count = 4,
    minibatch: Count | None = None,
    credit: CreditSpec = "team_sum",
    loss_aggregation: Literal["token", "turn"] = "token",
    penalty: Literal["full", "sampled", "exact"] = "sampled",
    entropy: NotNegative = 0.0,
) -> Algorithm:
    """HAPPO: PPO whose agents learn in turn, each knowing how the others have moved (arXiv 2109.11251, equation 11).

    In an order drawn for each step; an agent's advantages are multiplied by the ratio pi / pi_before of what those
    before it said in the same joint. Settings are ``ppo``'s. Raises ValueError for a setting out of range.
    """
    made = ppo(**locals())
    return dataclasses.replace(made, follow=joint_ratio, settings={**made.settings, "in_turn": "happo"})


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
    """A trust region in TRPO's spirit: a KL to the policy that sampled, in the loss, in place of PPO's clipping.

    Its weight is doubled after a step that moved the policy by more than 1.5 times ``trust`` (nats a token), and halved
    after one of less than trust / 1.5 (PPO's adaptive KL penalty, arXiv 1707.06347, section 4). Other settings are
    ``ppo``'s. Raises ValueError for a setting out of range.
    """
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
"""Bounds that no ratio reaches."""


def joint_ratio(
    lesson: Lesson, name: PolicyName, logp_BT: Tensor, targets: Mapping[PolicyName, Targets], state: State
) -> tuple[Mapping[PolicyName, Targets], State]:
    """What follows from an update in HAPPO: the others' advantages, by joint, times pi / pi_before of what was said."""
    batch = lesson.batches[name]
    known_B = (batch.joint_B >= 0) & ~batch.extra_B
    count = 1 + max(int(one.joint_B.max()) for one in lesson.batches.values())
    apart_B = ((logp_BT - batch.logp_BT) * batch.mask_BT).sum(1)[known_B]
    ratio_J = torch.zeros(count + 1, dtype=apart_B.dtype).index_add(0, batch.joint_B[known_B], apart_B).exp()

    def moved(other: PolicyName, aims: Targets) -> Targets:
        ratio_B = ratio_J[lesson.batches[other].joint_B]  # of joint -1 the last, which is 1
        return aims if other == name else dataclasses.replace(aims, adv_BT=aims.adv_BT * ratio_B[:, None])

    return {other: moved(other, aims) for other, aims in targets.items()}, state


def adapted_trust(
    lesson: Lesson,
    name: PolicyName,
    logp_BT: Tensor,
    targets: Mapping[PolicyName, Targets],
    state: State,
    *,
    target: float,
) -> tuple[Mapping[PolicyName, Targets], State]:
    """What follows from an update in a trust region: the next weight of the KL, by how far the policy has moved."""
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
