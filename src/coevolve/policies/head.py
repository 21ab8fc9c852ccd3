"""Log-probabilities of actions from hidden states, without keeping a vocabulary's worth of numbers per token.

Letters: N action tokens, V vocabulary, W hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from coevolve.policies.linear import times
from coevolve.policies.weights import logits

LOGITS_AT_ONCE = 1 << 24
"""Logits held at a time; beyond it they are made in pieces, and made again for the gradient."""


ROUND = 64
"""Tokens are filled up to a multiple of it: a processor's library keeps something for every shape it has seen."""


def pieces(n: int, vocabulary: int) -> Iterator[slice]:
    """Slices of n action tokens such that each one's logits are few enough."""
    size = max(1, LOGITS_AT_ONCE // vocabulary)
    return (slice(start, start + size) for start in range(0, n, size))


def log_softmax(head: Any, hidden_NW: Tensor, temperature_N: Tensor) -> Tensor:
    """log softmax(logits / temperature) over the vocabulary in float32, [N, V]."""
    return (logits(head, hidden_NW) / temperature_N[:, None]).log_softmax(-1)


def action_logps(head: Any, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
    """log pi of each action token, [N], differentiable, and the entropy of its distribution, [N], which is not.

    Memory does not grow with N * V.
    """
    n, fill = len(action_N), -len(action_N) % ROUND
    hidden_NW, action_N = pad(hidden_NW.float(), (0, 0, 0, fill)), pad(action_N, (0, fill))
    logp_N, entropy_N = _ActionLogps.apply(  # type: ignore[no-untyped-call]
        hidden_NW, head.weight, head.bias, action_N, pad(temperature_N, (0, fill), value=1.0)
    )
    return logp_N[:n], entropy_N[:n]


class _ActionLogps(torch.autograd.Function):
    """With p = softmax(z / T): d log p(a) / d z = (1[a] - p) / T. Of a single piece the logits are kept, else remade."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NW: Tensor, weight_VW: Tensor, bias_V: Tensor | None, action_N: Tensor, temperature_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        made = []
        for p in pieces(len(action_N), len(weight_VW)):
            z_NV = _scaled(hidden_NW[p], weight_VW, bias_V, temperature_N[p])
            lse_N = z_NV.logsumexp(-1)
            logp_N = z_NV.gather(-1, action_N[p, None])[:, 0] - lse_N
            p_NV = (z_NV - lse_N[:, None]).exp_()
            made.append((logp_N, lse_N - torch.linalg.vecdot(p_NV, z_NV)))
        ctx.kept = p_NV if len(made) == 1 and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(hidden_NW, weight_VW, bias_V, action_N, temperature_N)
        logp_N, entropy_N = (torch.cat(parts) for parts in zip(*made, strict=True))
        ctx.mark_non_differentiable(entropy_N)
        return logp_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NW, weight_VW, bias_V, action_N, temperature_N = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, *_rest = ctx.needs_input_grad
        dhidden_NW = torch.empty_like(hidden_NW) if needs_hidden else None
        dweight_VW = torch.zeros_like(weight_VW) if needs_weight else None
        dbias_V = torch.zeros_like(bias_V) if needs_bias else None
        scale_N = grad_N / temperature_N
        for p in pieces(len(action_N), len(weight_VW)):
            p_NV = ctx.kept
            if p_NV is None:
                p_NV = _scaled(hidden_NW[p], weight_VW, bias_V, temperature_N[p]).softmax(-1)
            # Into the same memory: nobody else needs the probabilities.
            dz_NV = p_NV.mul_(-scale_N[p, None]).scatter_add_(-1, action_N[p, None], scale_N[p, None])
            if dhidden_NW is not None:
                dhidden_NW[p] = times(dz_NV, weight_VW.t().contiguous())
            if dweight_VW is not None:
                dweight_VW += times(dz_NV.t().contiguous(), hidden_NW[p].t().contiguous())
            if dbias_V is not None:
                dbias_V += dz_NV.sum(0)
        ctx.kept = None
        return dhidden_NW, dweight_VW, dbias_V, None, None


def _scaled(hidden_NW: Tensor, weight_VW: Tensor, bias_V: Tensor | None, temperature_N: Tensor) -> Tensor:
    """Logits / temperature in float32, [N, V]."""
    with torch.autocast(hidden_NW.device.type, enabled=False):
        z_NV = times(hidden_NW, weight_VW, bias_V)
    return z_NV.div_(temperature_N[:, None])
