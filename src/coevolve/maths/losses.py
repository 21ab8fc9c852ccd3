"""Losses as weighted sums over tokens, so that micro-batches add up exactly. Letters: B turns, T action tokens.

weight_BT is the weight of each token (``maths.loss_aggregation``), 0 for padding.
"""

from __future__ import annotations

from collections.abc import Callable

from coevolve.late import Tensor, torch
from coevolve.maths.masked import check_BT


def score_function(logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Return -sum w A log pi, whose gradient is REINFORCE's (MAGRPO, arXiv 2508.04652, equation 2)."""
    check_BT(mask_BT, logp_BT, adv_BT, weight_BT)
    return -(adv_BT * logp_BT.masked_fill(~mask_BT, 0.0) * weight_BT).sum()


def reference_kl(
    logp_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor, estimator: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return sum w k(log pi - log pi_0) of the sampled tokens, differentiable; estimator: one of ``kl.ESTIMATORS``."""
    check_BT(mask_BT, logp_BT, ref_BT, weight_BT)
    return (estimator((logp_BT - ref_BT).masked_fill(~mask_BT, 0.0)) * weight_BT).sum()


Clip = float | tuple[float, float]
"""The clip range of a ratio around 1: one number for both sides, or (below, above)."""


def clipped_policy(
    logp_BT: Tensor, old_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """Return PPO's clipped surrogate (arXiv 1707.06347, equation 7) as a loss, and the total weight of clipped tokens.

    sum w max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), ratio = exp(logp - old). A token counts as clipped if the
    second term is larger: then it has no gradient. With high above low it is DAPO's (2503.14476, equation 8).
    """
    return _clipped(_log_ratio(logp_BT, old_BT, adv_BT, mask_BT, weight_BT).exp(), adv_BT, weight_BT, clip)


def clipped_turns(
    logp_BT: Tensor, old_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """Return ``clipped_policy`` with one ratio per turn, the geometric mean of its tokens' ratios (GSPO, arXiv
    2507.18071, equations 5 and 7)."""
    apart_BT = _log_ratio(logp_BT, old_BT, adv_BT, mask_BT, weight_BT)
    ratio_B1 = (apart_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)).exp()
    return _clipped(ratio_B1.expand(mask_BT.shape), adv_BT, weight_BT, clip)


def weighted_policy(
    logp_BT: Tensor, old_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """Return -sum w c A log pi, and the total weight of clipped tokens: REINFORCE with the clipped ratio c as a weight
    without gradient, so that clipped tokens keep theirs (CISPO, arXiv 2506.13585, equations 4 and 5)."""
    ratio_BT = _log_ratio(logp_BT, old_BT, adv_BT, mask_BT, weight_BT).exp().detach()
    kept_BT = ratio_BT.clamp(*_bounds(clip))
    clipped = ((kept_BT != ratio_BT) * weight_BT).sum()
    return score_function(logp_BT, kept_BT * adv_BT, mask_BT, weight_BT), clipped


Surrogate = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Clip], tuple[Tensor, Tensor]]
"""(logp_BT, old_BT, adv_BT, mask_BT, weight_BT, clip) -> (loss, weight of the clipped tokens)."""

RATIOS: dict[str, Surrogate] = {"token": clipped_policy, "turn": clipped_turns, "detached": weighted_policy}
"""Surrogates for batches that are used several times, by the ``ratio`` setting."""


def _log_ratio(logp_BT: Tensor, old_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor) -> Tensor:
    check_BT(mask_BT, logp_BT, old_BT, adv_BT, weight_BT)
    return (logp_BT - old_BT).masked_fill(~mask_BT, 0.0)


def _clipped(ratio_BT: Tensor, adv_BT: Tensor, weight_BT: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    plain_BT = -adv_BT * ratio_BT
    clipped_BT = -adv_BT * ratio_BT.clamp(*_bounds(clip))
    loss = (torch.maximum(plain_BT, clipped_BT) * weight_BT).sum()
    return loss, ((clipped_BT > plain_BT) * weight_BT).sum().detach()


def _bounds(clip: Clip) -> tuple[float, float]:
    low, high = clip if isinstance(clip, tuple) else (clip, clip)
    return 1 - low, 1 + high


def clipped_value(
    value_BT: Tensor, old_BT: Tensor, return_BT: Tensor, mask_BT: Tensor, weight_BT: Tensor, clip: float
) -> Tensor:
    """Return 0.5 sum w max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2), PPO's clipped value loss."""
    check_BT(mask_BT, value_BT, old_BT, return_BT, weight_BT)
    near_BT = torch.maximum(torch.minimum(value_BT, old_BT + clip), old_BT - clip)
    worst_BT = torch.maximum((value_BT - return_BT).square(), (near_BT - return_BT).square())
    return 0.5 * (worst_BT * weight_BT).sum()
