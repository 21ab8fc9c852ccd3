"""Statistics over the tokens of a mask, without padding. Letters: B turns, T action tokens."""

from __future__ import annotations

from coevolve.late import Tensor, torch
from coevolve.maths import groups


def check_BT(mask_BT: Tensor, *others: Tensor) -> None:
    """Assert that the mask is boolean of rank 2 and that the other tensors have its shape."""
    assert mask_BT.ndim == 2 and mask_BT.dtype == torch.bool, (mask_BT.shape, mask_BT.dtype)
    for other in others:
        assert other.shape == mask_BT.shape, (other.shape, mask_BT.shape)


def mean(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean over the tokens of the mask, a scalar."""
    check_BT(mask_BT, x_BT)
    return (x_BT * mask_BT).sum() / mask_BT.sum()


def centred(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return x - mean over the tokens of the mask, 0 outside; exactly 0 everywhere if they differ by rounding only,
    since the mean of equal numbers may be rounded."""
    check_BT(mask_BT, x_BT)
    said_N = x_BT[mask_BT]
    if bool(groups.flat(said_N, torch.zeros_like(said_N, dtype=torch.long)).all()):
        return torch.zeros_like(x_BT)
    return (x_BT - mean(x_BT, mask_BT)) * mask_BT


def variance(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the unbiased variance over the tokens of the mask, a scalar; 0 for a single token."""
    return centred(x_BT, mask_BT).square().sum() / (mask_BT.sum() - 1).clamp(min=1)


def whiten(x_BT: Tensor, mask_BT: Tensor, shift_mean: bool = True) -> Tensor:
    """Return (x - mean) / std over the tokens of the mask, with the unbiased variance; 0 outside.

    shift_mean=False adds the mean back unscaled. A single token, or tokens that are equal up to rounding, become 0, or
    with shift_mean=False their mean.
    """
    whitened_BT = centred(x_BT, mask_BT) * torch.rsqrt(variance(x_BT, mask_BT) + 1e-8)
    return whitened_BT if shift_mean else whitened_BT + mean(x_BT, mask_BT) * mask_BT


def explained_variance(value_BT: Tensor, return_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return 1 - Var(return - value) / Var(return): 1 for a perfect critic, 0 for a useless one, below 0 a harmful one.

    NaN if the returns vary by rounding only, as sums of advantages and values with one total do.
    """
    check_BT(mask_BT, value_BT, return_BT)
    value, found = value_BT[mask_BT], return_BT[mask_BT]
    rounding = torch.finfo(found.dtype).eps * (value.abs() + found.abs()).max() * mask_BT.shape[1]
    flat = found.max() - found.min() <= rounding
    return torch.where(flat, torch.nan, 1 - (found - value).var(correction=0) / found.var(correction=0))
