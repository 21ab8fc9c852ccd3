"""Averages that padding cannot touch. Letters: B turns, T action tokens."""

from __future__ import annotations

from coevolve.late import Tensor, torch
from coevolve.maths import groups


def check_BT(mask_BT: Tensor, *others: Tensor) -> None:
    """Entry contract of everything over tokens: a boolean mask of rank 2, the others of its shape."""
    assert mask_BT.ndim == 2 and mask_BT.dtype == torch.bool, (mask_BT.shape, mask_BT.dtype)
    for other in others:
        assert other.shape == mask_BT.shape, (other.shape, mask_BT.shape)


def mean(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the tokens of the mask, a scalar."""
    check_BT(mask_BT, x_BT)
    return (x_BT * mask_BT).sum() / mask_BT.sum()


def centred(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """x - mean over the tokens of the mask, 0 outside; 0 everywhere if they differ by rounding only, since the mean of
    equal numbers is one of them but for rounding."""
    check_BT(mask_BT, x_BT)
    said_N = x_BT[mask_BT]
    if bool(groups.flat(said_N, torch.zeros_like(said_N, dtype=torch.long)).all()):
        return torch.zeros_like(x_BT)
    return (x_BT - mean(x_BT, mask_BT)) * mask_BT


def variance(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Unbiased variance over the tokens of the mask, a scalar; 0 of a single one."""
    return centred(x_BT, mask_BT).square().sum() / (mask_BT.sum() - 1).clamp(min=1)


def whiten(x_BT: Tensor, mask_BT: Tensor, shift_mean: bool = True) -> Tensor:
    """(x - mean) / std over the tokens of the mask, with the unbiased variance; 0 outside.

    shift_mean=False puts the mean back, as it was: only the distances to it are divided. A single token, or tokens that
    are all equal but for rounding, become 0 or stay.
    """
    whitened_BT = centred(x_BT, mask_BT) * torch.rsqrt(variance(x_BT, mask_BT) + 1e-8)
    return whitened_BT if shift_mean else whitened_BT + mean(x_BT, mask_BT) * mask_BT


def explained_variance(value_BT: Tensor, return_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 one that knows nothing, below 0 a harmful one.

    NaN where the returns do not vary but for rounding, as those of advantages and values that add up to one number do.
    """
    check_BT(mask_BT, value_BT, return_BT)
    value, found = value_BT[mask_BT], return_BT[mask_BT]
    rounding = torch.finfo(found.dtype).eps * (value.abs() + found.abs()).max() * mask_BT.shape[1]
    flat = found.max() - found.min() <= rounding
    return torch.where(flat, torch.nan, 1 - (found - value).var(correction=0) / found.var(correction=0))
