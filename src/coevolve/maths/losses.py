"""Losses as weighted sums over tokens, so that micro-batches add up exactly. Letters: B turns, T action tokens.

weight_BT says how much each token counts (``maths.weights``); it is 0 where there is no token.
"""

from __future__ import annotations

from collections.abc import Callable

from coevolve.late import Tensor, torch
from coevolve.maths.masked import check_BT


def score_function(logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """-sum w A log pi: its gradient is REINFORCE's (MAGRPO, arXiv 2508.04652, equation 2). No ratio, no clipping."""
    check_BT(mask_BT, logp_BT, adv_BT, weight_BT)
    return -(adv_BT * logp_BT.masked_fill(~mask_BT, 0.0) * weight_BT).sum()


def reference_kl(
    logp_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor, estimator: Callable[[Tensor], Tensor]
) -> Tensor:
    """sum w k(log pi - log pi_0) of the sampled tokens, differentiable; estimator: one of ``kl.ESTIMATORS``."""
    check_BT(mask_BT, logp_BT, ref_BT, weight_BT)
    return (estimator((logp_BT - ref_BT).masked_fill(~mask_BT, 0.0)) * weight_BT).sum()


def clipped_policy(
    logp_BT: Tensor, old_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate (arXiv 1707.06347, equation 7) as a loss, and the weight of the clipped tokens.

    sum w max(-A ratio, -A clip(ratio, 1 - clip, 1 + clip)), ratio = exp(logp - old). A token counts as clipped where
    the second term is the larger: there it has no gradient.
    """
    check_BT(mask_BT, logp_BT, old_BT, adv_BT, weight_BT)
    ratio_BT = torch.exp((logp_BT - old_BT).masked_fill(~mask_BT, 0.0))
    plain_BT = -adv_BT * ratio_BT
    clipped_BT = -adv_BT * ratio_BT.clamp(1 - clip, 1 + clip)
    loss = (torch.maximum(plain_BT, clipped_BT) * weight_BT).sum()
    return loss, ((clipped_BT > plain_BT) * weight_BT).sum().detach()


def clipped_value(
    value_BT: Tensor, old_BT: Tensor, return_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor, clip: float
) -> Tensor:
    """0.5 sum w max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2): the critic moves by clip at most."""
    check_BT(mask_BT, value_BT, old_BT, return_BT, weight_BT)
    near_BT = torch.maximum(torch.minimum(value_BT, old_BT + clip), old_BT - clip)
    worst_BT = torch.maximum((value_BT - return_BT).square(), (near_BT - return_BT).square())
    return 0.5 * (worst_BT * weight_BT).sum()
