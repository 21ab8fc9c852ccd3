"""Attention over some of the keys, with what it takes to put it together with attention over the others.

The log-sum-exp of the scores says how much the part weighs (FlashAttention, arXiv 2205.14135, section 3.1), and with
that of the *whole* the gradient of each part can be taken alone. Letters: M independent blocks, Q queries, P keys, H
query heads, K key heads, D head dimension.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]


def forward(q: Tensor, k: Tensor, v: Tensor, late_MP: Tensor | None, causal: bool, scaling: float) -> Pair:
    """softmax(scaling q k') v, [M, H, Q, D], and the log-sum-exp it was divided by, [M, H, Q].

    late_MP: keys nobody sees. causal: query i sees keys up to i (Q = P).
    """
    heads, keys = q.shape[1], k.shape[1]
    q, k, v = _grouped(q, k, v, causal)
    out, lse = (
        _fused(q, k, v, late_MP, causal, scaling) if _fusable(q, v) else _plain(q, k, v, late_MP, causal, scaling)
    )
    if heads == keys or causal:
        return out, lse
    ratio = heads // keys
    return torch.unflatten(out, 2, (ratio, -1)).flatten(1, 2), torch.unflatten(lse, 2, (ratio, -1)).flatten(1, 2)


class Seen(NamedTuple):
    """What a gradient needs: that of the output, the inputs, and output and log-sum-exp of the *whole* attention."""

    grad: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


def backward(seen: Seen, late_MP: Tensor | None, causal: bool, scaling: float) -> Three:
    """Gradients of q, k and v through the attention over these keys."""
    heads, keys = seen.q.shape[1], seen.k.shape[1]
    shape = (keys, heads // keys)
    q, k, v = _grouped(seen.q, seen.k, seen.v, causal)
    grad, out, lse = seen.grad, seen.out, seen.lse
    if heads != keys and not causal:
        grad, out, lse = (torch.unflatten(x, 1, shape).flatten(2, 3) for x in (grad, out, lse))
    made = _fused_backward if _fusable(q, v) else _plain_backward
    dq, dk, dv = made(Seen(grad, q, k, v, out, lse), late_MP, causal, scaling)
    if heads != keys and causal:
        dk, dv = (torch.unflatten(x, 1, shape).sum(2) for x in (dk, dv))
    elif heads != keys:
        dq = torch.unflatten(dq, 2, (shape[1], -1)).flatten(1, 2)
    return dq, dk, dv


def _grouped(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Three:
    """Heads that share keys: as more queries of one head, or, where their order matters, each with a copy of the
    keys."""
    ratio = q.shape[1] // k.shape[1]
    if ratio == 1:
        return q, k, v
    if causal:
        return q, k.repeat_interleave(ratio, 1), v.repeat_interleave(ratio, 1)
    return torch.unflatten(q, 1, (k.shape[1], ratio)).flatten(2, 3), k, v


def _fusable(q: Tensor, v: Tensor) -> bool:
    """PyTorch's attention for CPUs holds no scores. Elsewhere its operators do not return what we need."""
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1] and q.dtype == torch.float32


def _fused(q: Tensor, k: Tensor, v: Tensor, late_MP: Tensor | None, causal: bool, scaling: float) -> Pair:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = operator(q, k, v, 0.0, causal, attn_mask=_bias(q, late_MP), scale=scaling)
    return out, lse


def _fused_backward(seen: Seen, late_MP: Tensor | None, causal: bool, scaling: float) -> Three:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv = operator(*seen, 0.0, causal, attn_mask=_bias(seen.q, late_MP), scale=scaling)
    return dq, dk, dv


def _bias(q: Tensor, late_MP: Tensor | None) -> Tensor | None:
    if late_MP is None:
        return None
    hide_MP = torch.zeros(late_MP.shape, dtype=q.dtype, device=q.device).masked_fill(late_MP, -torch.inf)
    return hide_MP[:, None, None].expand(-1, 1, q.shape[2], -1)


def _scores(q: Tensor, k: Tensor, late_MP: Tensor | None, causal: bool, scaling: float) -> Tensor:
    score = (q @ k.transpose(-1, -2)).float() * scaling
    if late_MP is not None:
        score = score.masked_fill(late_MP[:, None, None], -torch.inf)
    if causal:
        future_QP = torch.ones(score.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        score = score.masked_fill(future_QP, -torch.inf)
    return score


def _plain(q: Tensor, k: Tensor, v: Tensor, late_MP: Tensor | None, causal: bool, scaling: float) -> Pair:
    score = _scores(q, k, late_MP, causal, scaling)
    lse = score.logsumexp(-1)
    return (score - lse.unsqueeze(-1)).exp().to(v.dtype) @ v, lse


def _plain_backward(seen: Seen, late_MP: Tensor | None, causal: bool, scaling: float) -> Three:
    """d score = p (grad v' - grad . out), with p a share of the whole (FlashAttention, appendix B.4)."""
    grad, q, k, v, out, lse = seen
    p = (_scores(q, k, late_MP, causal, scaling) - lse.unsqueeze(-1)).exp()
    inner = (grad.float() * out.float()).sum(-1, keepdim=True)
    dscore = (p * ((grad @ v.transpose(-1, -2)).float() - inner) * scaling).to(q.dtype)
    return dscore @ k, dscore.transpose(-1, -2) @ q, p.to(grad.dtype).transpose(-1, -2) @ grad
