"""Generalised advantage estimation over tokens and over turns. Letters: B turns, T action tokens."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from coevolve.late import Tensor, torch
from coevolve.maths.masked import check_BT
from coevolve.types import Episode


def at_last_token(credit_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the turn's credit at its last action token, 0 elsewhere: a response is rewarded when it is complete."""
    check_BT(mask_BT)
    assert credit_B.shape == mask_BT.shape[:1], (credit_B.shape, mask_BT.shape)
    last_B = mask_BT.sum(1) - 1
    assert bool((last_B >= 0).all()), "a turn without tokens has no last token"
    paid_BT = torch.zeros(mask_BT.shape, dtype=credit_B.dtype, device=credit_B.device)
    return paid_BT.scatter(1, last_B[:, None], credit_B[:, None])


def token_rewards(credit_B: Tensor, kl_BT: Tensor, mask_BT: Tensor, eta: float) -> Tensor:
    """Return -eta * KL at every token, plus the credit at the last one (CORY, arXiv 2410.06101, section 3)."""
    check_BT(mask_BT, kl_BT)
    return at_last_token(credit_B, mask_BT) - eta * kl_BT * mask_BT


def gae(reward_BT: Tensor, value_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return GAE's (adv_BT, return_BT), 0 outside the mask (arXiv 1506.02438, equation 16).

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}; return_t = A_t + V_t. A turn is terminal
    after its last token: V and A are 0 there. mask_BT must be a prefix of each row.
    """
    check_BT(mask_BT, reward_BT, value_BT)
    steps = mask_BT.shape[1]
    reward_BT, value_BT = reward_BT * mask_BT, value_BT * mask_BT
    after_B = next_value_B = torch.zeros_like(reward_BT[:, 0])
    columns = []
    for t in reversed(range(steps)):
        delta_B = reward_BT[:, t] + gamma * next_value_B - value_BT[:, t]
        after_B = (delta_B + gamma * lam * after_B) * mask_BT[:, t]
        next_value_B = value_BT[:, t]
        columns.append(after_B)
    adv_BT = torch.stack(columns[::-1], 1)
    return adv_BT, adv_BT + value_BT


def over_turns(
    episode: Episode,
    credit: Mapping[int, float],
    value: Mapping[int, float],
    gamma: float,
    lam: float,
) -> dict[int, float]:
    """Return the lambda-return of every turn that has a value; the keys of all mappings are ``id(turn)``.

    G_t = r_t + gamma ((1 - lam) V_{t+1} + lam G_{t+1}), where t + 1 is the role's turn in the joint that follows, the
    mean over these where a tree has several (a turn that is part of that joint or of an earlier one, too, does not
    follow); so G - V is GAE (arXiv 1506.02438). credit: the return R_t = r_t + gamma * mean of R_{t+1}, so r_t need not
    be known, and with lam 1 G_t is R_t for any credit. A turn that was not scored, and one that nothing follows, keeps
    its return.
    """
    after: dict[int, list[int]] = {}
    for number, joint in enumerate(episode.joints):
        if joint.after is not None and joint.answered:
            after.setdefault(joint.after, []).append(number)
    joints: dict[int, list[int]] = {}
    for number, joint in enumerate(episode.joints):
        for turn in joint.turns:
            joints.setdefault(id(turn), []).append(number)
    beyond: dict[int, float] = {}  # G - R
    # From the end: a joint has a later number than the one it continues. A turn may be part of both.
    for turn in sorted(episode.turns, key=lambda turn: joints.get(id(turn), [0])[0], reverse=True):
        if id(turn) not in value:
            continue
        of_joints = []
        for joint_number in joints.get(id(turn), ()):
            following = [t for k in after.get(joint_number, ()) for t in episode.joints[k].turns if t.role == turn.role]
            known = [id(t) for t in following if id(t) in beyond]
            parts = [(1 - lam) * (value[t] - credit[t]) + lam * beyond[t] for t in known]
            of_joints.append(gamma * fmean(parts) if parts else 0.0)
        beyond[id(turn)] = fmean(of_joints) if of_joints else 0.0
    return {turn: credit[turn] + more for turn, more in beyond.items()}
