"""PyTorch's attention kernels that hold no scores and say what they divided by, so that parts can be put together.

Called below the public function, which keeps the log-sum-exp to itself. Letters: M independent blocks, Q queries, P
keys, H heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

Pair = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]

_ALIGNED = 16
"""The GPU's kernel reads a mask so many numbers at a time."""

_LSE = 32
"""The GPU's kernel fills log-sum-exps up to a multiple of it, and reads them so."""


class Seen(NamedTuple):
    """What a gradient needs: that of the output, the inputs, and output and log-sum-exp of the *whole* attention."""

    grad: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


class Kernel(NamedTuple):
    """forward and backward as those of ``partial``, with as many query heads as key heads."""

    forward: Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Pair]
    backward: Callable[[Seen, Tensor | None, bool, float], Three]


def wide(device: torch.device) -> bool:
    """Whether attention computes in float32 whatever else does: on the CPU, whose bfloat16 is slower and less exact."""
    return device.type == "cpu"


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, late_MP: Tensor | None, causal: bool, scaling: float) -> Pair:
    operator, mask = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, _mask(q, late_MP, 1)
    out, lse = operator(q, k, v, 0.0, causal, attn_mask=mask, scale=scaling)
    return out, lse


def _on_cpu_backward(seen: Seen, late_MP: Tensor | None, causal: bool, scaling: float) -> Three:
    operator, mask = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward, _mask(seen.q, late_MP, 1)
    dq, dk, dv = operator(*seen, 0.0, causal, attn_mask=mask, scale=scaling)
    return dq, dk, dv


def _on_gpu(q: Tensor, k: Tensor, v: Tensor, late_MP: Tensor | None, causal: bool, scaling: float) -> Pair:
    operator, mask = torch.ops.aten._scaled_dot_product_efficient_attention, _mask(q, late_MP, q.shape[1])
    out, lse, *_ = operator(q, k, v, mask, True, 0.0, causal, scale=scaling)
    return out, lse[..., : q.shape[2]]


def _on_gpu_backward(seen: Seen, late_MP: Tensor | None, causal: bool, scaling: float) -> Three:
    """The operator takes it for granted that the output lies as it makes it, [M, Q, H, D], and that a head's
    log-sum-exps have no gaps between them."""
    operator = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    grad, q, k, v, out, lse = seen
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    # As of queries that weigh nothing; seed and offset are of a dropout that there is not.
    lse, no = pad(lse, (0, -lse.shape[-1] % _LSE), value=torch.inf), torch.zeros((), dtype=torch.long, device=q.device)
    given = (grad, q, k, v, _mask(q, late_MP, q.shape[1]), out, lse.contiguous(), no, no)
    dq, dk, dv, _ = operator(*given, 0.0, [True, True, True, False], causal, scale=scaling)
    return dq, dk, dv


def _mask(q: Tensor, late_MP: Tensor | None, heads: int) -> Tensor | None:
    """What is added to scores: minus infinity where nobody sees."""
    if late_MP is None:
        return None
    blocks, count = late_MP.shape
    width = -(-count // _ALIGNED) * _ALIGNED
    hide_MP = torch.zeros((blocks, width), dtype=q.dtype, device=q.device)
    hide_MP[:, :count].masked_fill_(late_MP, -torch.inf)
    return hide_MP.as_strided((blocks, heads, q.shape[2], count), (width, 0, 0, 1))


CPU = Kernel(_on_cpu, _on_cpu_backward)
GPU = Kernel(_on_gpu, _on_gpu_backward)
