"""Averages that padding cannot touch. Letters: B turns, T action tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def check_BT(mask_BT: Tensor, *others: Tensor) -> None:
    """Entry contract of everything over tokens: a boolean mask of rank 2, the others of its shape."""
    assert mask_BT.ndim == 2 and mask_BT.dtype == torch.bool, (mask_BT.shape, mask_BT.dtype)
    for other in others:
        assert other.shape == mask_BT.shape, (other.shape, mask_BT.shape)


def mean(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the tokens of the mask, a scalar."""
    check_BT(mask_BT, x_BT)
    return (x_BT * mask_BT).sum() / mask_BT.sum()


def whiten(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(x - mean) / std over the tokens of the mask, with the unbiased variance; 0 outside.

    A single token, or tokens that are all equal, become 0 (the 1e-8 under the root keeps it finite).
    """
    check_BT(mask_BT, x_BT)
    count = mask_BT.sum()
    centred_BT = (x_BT - mean(x_BT, mask_BT)) * mask_BT
    variance = centred_BT.square().sum() / (count - 1).clamp(min=1)
    return centred_BT * torch.rsqrt(variance + 1e-8)


def explained_variance(value_BT: Tensor, return_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 one that knows nothing, below 0 a harmful one.

    NaN where the returns do not vary.
    """
    check_BT(mask_BT, value_BT, return_BT)
    error = (return_BT - value_BT)[mask_BT]
    return 1 - error.var(correction=0) / return_BT[mask_BT].var(correction=0)
