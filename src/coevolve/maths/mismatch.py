"""When who samples and who learns compute other numbers: weights that make up for it. Letters: B turns, T tokens.

A sampler with other kernels, or in another precision, draws from pi' where the learner has pi, so the gradient of what
was drawn is off by as much. The ratio pi / pi' of the same weights puts it right and makes it vary, so it is bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from coevolve.late import Tensor, torch
from coevolve.maths.masked import check_BT

Bound = Callable[[Tensor], tuple[Tensor, Tensor]]
"""log pi / pi' of the sampled tokens, 0 where there are none -> (ratio, what of it is left); [B, T] each."""


def tis(apart_BT: Tensor, cap: float = 2.0) -> tuple[Tensor, Tensor]:
    """min(ratio, cap) of each token: truncated importance sampling. The larger the cap, the less biased."""
    ratio_BT = apart_BT.exp()
    return ratio_BT, ratio_BT.clamp(max=cap)


def icepop(apart_BT: Tensor, low: float = 0.5, high: float = 5.0) -> tuple[Tensor, Tensor]:
    """The ratio from low to high, else 0: tokens that the two see too differently teach nothing (IcePop)."""
    ratio_BT = apart_BT.exp()
    return ratio_BT, ratio_BT.where((ratio_BT >= low) & (ratio_BT <= high), 0.0)


def sequence(apart_BT: Tensor, cap: float = 3.0) -> tuple[Tensor, Tensor]:
    """One ratio a turn, the product of its tokens', and 0 where it is above the cap (TRL's ``sequence_mask``)."""
    ratio_BT = apart_BT.sum(1, keepdim=True).exp().expand(apart_BT.shape)
    return ratio_BT, ratio_BT.where(ratio_BT <= cap, 0.0)


BOUNDS: dict[str, Bound | None] = {"none": None, "tis": tis, "icepop": icepop, "sequence": sequence}


def weight(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, bound: Bound) -> tuple[Tensor, dict[str, Tensor]]:
    """How much each token counts for what was sampled elsewhere; without gradient, 1 outside the mask.

    old_BT: log pi by the learner, before it has learnt from these; sampled_BT: when they were sampled. Beside it, of
    every token, 0 outside the mask: ``kl``, w - 1 - log w of its ratio w, whose mean is KL(pi' || pi); ``masked``, 1
    where not all of the ratio is left; ``max``, the ratio.
    """
    check_BT(mask_BT, old_BT, sampled_BT)
    apart_BT = (old_BT - sampled_BT).detach().masked_fill(~mask_BT, 0.0)
    ratio_BT, left_BT = bound(apart_BT)
    said = {"kl": torch.expm1(apart_BT) - apart_BT, "masked": (left_BT != ratio_BT).float(), "max": ratio_BT}
    return left_BT.masked_fill(~mask_BT, 1.0), {name: x_BT.masked_fill(~mask_BT, 0.0) for name, x_BT in said.items()}
