"""Attention over some of the keys, with what it takes to put it together with attention over the others.

The log-sum-exp of the scores says how much the part weighs (FlashAttention, arXiv 2205.14135, section 3.1), and with
that of the *whole* the gradient of each part can be taken alone. Letters: M independent blocks, Q queries, P keys, H
query heads, K key heads, D head dimension.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from coevolve.compute import kernels
from coevolve.compute.kernels import Kernel, Pair, Seen, Three

_MANY = 32
"""Queries from which on a GPU's kernel is used that holds no scores; fewer have few."""


def forward(q: Tensor, k: Tensor, v: Tensor, late_MP: Tensor | None, causal: bool, scaling: float) -> Pair:
    """softmax(scaling q k') v, [M, H, Q, D], and the log-sum-exp it was divided by, [M, H, Q].

    late_MP: keys nobody sees. causal: query i sees keys up to i (Q = P).
    """
    heads, keys = q.shape[1], k.shape[1]
    q, k, v = _grouped(q, k, v, causal)
    out, lse = _kernel(q, k, v).forward(q, k, v, late_MP, causal, scaling)
    if heads == keys or causal:
        return out, lse
    ratio = heads // keys
    return torch.unflatten(out, 2, (ratio, -1)).flatten(1, 2), torch.unflatten(lse, 2, (ratio, -1)).flatten(1, 2)


def backward(seen: Seen, late_MP: Tensor | None, causal: bool, scaling: float) -> Three:
    """Gradients of q, k and v through the attention over these keys."""
    heads, keys = seen.q.shape[1], seen.k.shape[1]
    shape = (keys, heads // keys)
    q, k, v = _grouped(seen.q, seen.k, seen.v, causal)
    grad, out, lse = seen.grad, seen.out, seen.lse
    if heads != keys and not causal:
        grad, out, lse = (torch.unflatten(x, 1, shape).flatten(2, 3) for x in (grad, out, lse))
    dq, dk, dv = _kernel(q, k, v).backward(Seen(grad, q, k, v, out, lse), late_MP, causal, scaling)
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


def _kernel(q: Tensor, k: Tensor, v: Tensor) -> Kernel:
    """One that holds no scores, where there is one for these."""
    if q.shape[-1] != v.shape[-1] or not q.dtype == k.dtype == v.dtype:
        return PLAIN
    if q.device.type == "cpu":
        return kernels.CPU if q.dtype == torch.float32 else PLAIN
    return kernels.GPU if q.is_cuda and q.shape[2] >= _MANY and _right(q.device, q.dtype, q.shape[-1]) else PLAIN


@cache
def _right(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether a GPU's kernel gives there what ``_plain`` does: it is private to PyTorch."""
    generator = torch.Generator().manual_seed(0)
    q, grad, kv = (torch.randn(2, 40, 2, n, generator=generator).to(device, dtype) for n in (size, size, 2 * size))
    q, grad, k, v = (x.transpose(1, 2) for x in (q, grad, *kv.chunk(2, -1)))  # with the gaps that they come with
    late_MP = (torch.arange(27) >= torch.tensor([[27], [21]])).to(device)
    off = 1e-5 if dtype == torch.float32 else 2e-2
    try:
        with torch.autocast(device.type, enabled=False):
            for given, late, causal in (
                ((grad, q, k, v), None, True),
                ((grad, q, k[:, :, :27], v[:, :, :27]), late_MP, False),
            ):
                found, wanted = (_tried(kernel, given, late, causal) for kernel in (kernels.GPU, PLAIN))
                if not all(float((x - y).norm() / y.norm()) < off for x, y in zip(found, wanted, strict=True)):
                    return False
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, RuntimeError, NotImplementedError):
        return False  # this PyTorch has no such operator, or not for this GPU
    return True


def _tried(kernel: Kernel, given: tuple[Tensor, ...], late_MP: Tensor | None, causal: bool) -> list[Tensor]:
    """Values and gradients, as of a part that is half of the whole; the last queries weigh nothing."""
    grad, q, k, v = given
    scaling = q.shape[-1] ** -0.5
    out, lse = kernel.forward(q, k, v, late_MP, causal, scaling)
    whole = lse + math.log(2)
    whole[:, :, -3:] = torch.inf
    grads = kernel.backward(Seen(grad, q, k, v, out, whole), late_MP, causal, scaling)
    return [x.float() for x in (out, lse, *grads)]


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


PLAIN = Kernel(_plain, _plain_backward)
