"""HAPPO: policies are updated one after the other, each given the updates before it.

Deviations from the paper are numbered in docs/objectives.md. Letters: B turns, T action tokens, J joints.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from coevolve.algorithms.losses import KL_WEIGHT
from coevolve.algorithms.ppo import ppo
from coevolve.credit import CreditSpec, credit_name
from coevolve.late import Tensor, torch
from coevolve.settings import Count, Fraction, NotNegative, Positive, checked_call
from coevolve.types import Advantage, Algorithm, Episode, Lesson, PolicyName, State, Targets


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
    """HAPPO: PPO whose policies are updated in turn, each given the updates before it (arXiv 2109.11251, equation 11).

    The order is drawn for each step. A policy's advantages are multiplied by the ratio pi / pi_before of the turns that
    the policies before it have in the same joint; with ``penalty`` exact the KL in its loss by that of their turns
    which its prompt may tell of; an entropy bonus by none. Settings are ``ppo``'s. For plays in which every turn is
    part of one joint (``chain``, ``rounds``). Raises ValueError for another play, for ``credit`` crossed, and for a
    setting out of range.
    """
    _check_credit(credit)
    made = ppo(**locals())
    advantage = partial(_advantage, inner=made.advantage)
    settings = {**made.settings, "in_turn": "happo"}
    return dataclasses.replace(made, advantage=advantage, follow=joint_ratio, settings=settings)


def _check_credit(credit: CreditSpec) -> None:
    """Raise ValueError for a credit that is a mean over several partners: the ratio is of those in the turn's joint."""
    name = credit_name(credit)
    if "crossed" in (name, name.get("name") if isinstance(name, Mapping) else None):
        raise ValueError(
            "algorithm.credit: crossed is a mean over all partners of a group, and happo follows the update of those "
            "in a turn's own joint only; take team_mean, counterfactual or difference"
        )


def _advantage(lesson: Lesson, state: State, *, inner: Advantage) -> tuple[Mapping[PolicyName, Targets], State]:
    """Return PPO's targets. Raises ValueError unless every turn is part of exactly one joint."""
    for episode in lesson.episodes:
        joints = Counter(id(turn) for joint in episode.joints for turn in joint.turns)
        if others := [turn for turn in episode.turns if joints[id(turn)] != 1]:
            raise ValueError(
                f"happo: problem {episode.problem.id!r}: a turn of role {others[0].role!r} is part of "
                f"{joints[id(others[0])]} joint responses; want a play in which every turn is part of one (chain, "
                "rounds), or algorithm: cory"
            )
    return inner(lesson, state)


def joint_ratio(
    lesson: Lesson, name: PolicyName, logp_BT: Tensor, targets: Mapping[PolicyName, Targets], state: State
) -> tuple[Mapping[PolicyName, Targets], State]:
    """Return the targets with the other policies' advantages multiplied, by joint, by pi / pi_before of the updated
    policy's turns, and the weights of a KL in their loss by that of its turns before; and the state."""
    batch = lesson.batches[name]
    known_B = (batch.joint_B >= 0) & ~batch.extra_B
    count = 1 + max(int(one.joint_B.max()) for one in lesson.batches.values())
    apart_B = ((logp_BT - batch.logp_BT) * batch.mask_BT).sum(1)
    ratio_J = torch.zeros(count + 1, dtype=apart_B.dtype).index_add(0, batch.joint_B[known_B], apart_B[known_B]).exp()

    def moved(other: PolicyName, aims: Targets) -> Targets:
        ratio_B = ratio_J[lesson.batches[other].joint_B]  # joint -1 takes the last element, which is 1
        columns = dict(aims.columns)
        if KL_WEIGHT in columns:
            told_B = torch.zeros_like(columns[KL_WEIGHT])
            told_B[~lesson.batches[other].extra_B] = _told_of(lesson.episodes, name, apart_B[~batch.extra_B], other)
            columns[KL_WEIGHT] = columns[KL_WEIGHT] * told_B.exp()
        return dataclasses.replace(aims, adv_BT=aims.adv_BT * ratio_B[:, None], columns=columns)

    return {other: aims if other == name else moved(other, aims) for other, aims in targets.items()}, state


def _told_of(episodes: Sequence[Episode], name: PolicyName, apart_B: Tensor, other: PolicyName) -> Tensor:
    """Return for each turn of ``other`` the sum of ``apart_B``, one number for each turn of ``name``, over those before
    it: its prompt, and so its KL, may depend on them and on no later ones."""
    apart = iter(apart_B)
    found = []
    for episode in episodes:
        own = [(at, next(apart)) for at, turn in enumerate(episode.turns) if turn.policy == name]
        for turn in episode.turns:
            if turn.policy == other:
                found.append(sum((x for at, x in own if at < turn.asked), apart_B.new_zeros(())))
    return torch.stack(found)
