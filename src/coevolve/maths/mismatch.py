"""Importance weights that correct the mismatch of sampler and learner. Letters: B turns, T tokens.

A sampler with other kernels or precision draws from pi' where the learner computes pi for the same weights, which
biases the gradient. The ratio pi / pi' corrects the bias but adds variance, so it is bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from coevolve.late import Tensor, torch
from coevolve.maths.masked import check_BT

Bound = Callable[[Tensor], tuple[Tensor, Tensor]]
"""log(pi / pi') of the sampled tokens, 0 for padding -> (ratio, bounded ratio); [B, T] each."""


def tis(apart_BT: Tensor, cap: float = 2.0) -> tuple[Tensor, Tensor]:
    """Bound the ratio of each token to min(ratio, cap): truncated importance sampling. A larger cap has less bias."""
    ratio_BT = apart_BT.exp()
    return ratio_BT, ratio_BT.clamp(max=cap)


def icepop(apart_BT: Tensor, low: float = 0.5, high: float = 5.0) -> tuple[Tensor, Tensor]:
    """Keep the ratio of each token if it is from low to high, else set it to 0, so the token is ignored (IcePop)."""
    ratio_BT = apart_BT.exp()
    return ratio_BT, ratio_BT.where((ratio_BT >= low) & (ratio_BT <= high), 0.0)


def sequence(apart_BT: Tensor, cap: float = 3.0) -> tuple[Tensor, Tensor]:
    """Use one ratio per turn, the product of its tokens' ratios, set to 0 above the cap (TRL's ``sequence_mask``)."""
    ratio_BT = apart_BT.sum(1, keepdim=True).exp().expand(apart_BT.shape)
    return ratio_BT, ratio_BT.where(ratio_BT <= cap, 0.0)


BOUNDS: dict[str, Bound | None] = {"none": None, "tis": tis, "icepop": icepop, "sequence": sequence}


def weight(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, bound: Bound) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the bounded ratio of each token, without gradient and 1 outside the mask, and metrics per token.

    old_BT: the learner's log pi before the update; sampled_BT: the sampler's. The metrics, 0 outside the mask: ``kl``,
    w - 1 - log w of the ratio w, whose mean is KL(pi' || pi); ``masked``, 1 where the bound changed the ratio; ``max``,
    the ratio.
    """
    check_BT(mask_BT, old_BT, sampled_BT)
    apart_BT = (old_BT - sampled_BT).detach().masked_fill(~mask_BT, 0.0)
    ratio_BT, left_BT = bound(apart_BT)
    said = {"kl": torch.expm1(apart_BT) - apart_BT, "masked": (left_BT != ratio_BT).float(), "max": ratio_BT}
    return left_BT.masked_fill(~mask_BT, 1.0), {name: x_BT.masked_fill(~mask_BT, 0.0) for name, x_BT in said.items()}
