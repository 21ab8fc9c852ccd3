"""From credit to what the policy is pushed by: GAE over tokens. Letters: B turns, T action tokens."""

from __future__ import annotations

from coevolve.late import Tensor, torch
from coevolve.maths.masked import check_BT


def at_last_token(credit_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The turn's credit on its last action token, 0 elsewhere: the whole response is paid when it is complete."""
    check_BT(mask_BT)
    assert credit_B.shape == mask_BT.shape[:1], (credit_B.shape, mask_BT.shape)
    last_B = mask_BT.sum(1) - 1
    assert bool((last_B >= 0).all()), "a turn without tokens has no last token"
    paid_BT = torch.zeros(mask_BT.shape, dtype=credit_B.dtype, device=credit_B.device)
    return paid_BT.scatter(1, last_B[:, None], credit_B[:, None])


def token_rewards(credit_B: Tensor, kl_BT: Tensor, mask_BT: Tensor, eta: float) -> Tensor:
    """-eta * KL at every token, plus the credit at the last one (CORY, arXiv 2410.06101, section 3)."""
    check_BT(mask_BT, kl_BT)
    return at_last_token(credit_B, mask_BT) - eta * kl_BT * mask_BT


def gae(reward_BT: Tensor, value_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, equation 16): (adv_BT, return_BT), 0 outside the mask.

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
