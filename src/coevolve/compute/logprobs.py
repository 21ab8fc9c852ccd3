"""Log-probabilities of actions from hidden states, without keeping a vocabulary's worth of numbers per token.

Letters: N action tokens, V vocabulary, W hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from coevolve.compute.cpu.prefix_cache import module, usable
from coevolve.compute.linear import inner, times
from coevolve.compute.lm_head import Outlet, outlet

LOGITS_AT_ONCE = 1 << 20
"""Logits made at a time: few enough for a processor's cache."""

LOGITS_KEPT = 1 << 24
"""Beyond so many, they are made again for the gradient."""


ROUND = 64
"""Tokens are filled up to a multiple of it: a processor's library keeps something for every shape it has seen."""


LEAST_ROWS = 128
"""Tokens at a time at least, however large the vocabulary: products of few rows are slow."""


def pieces(n: int, vocabulary: int) -> Iterator[slice]:
    """Slices of n action tokens such that each one's logits are few enough."""
    size = max(LEAST_ROWS, LOGITS_AT_ONCE // vocabulary)
    return (slice(start, start + size) for start in range(0, n, size))


def log_softmax(logits: Outlet, hidden_NW: Tensor, temperature_N: Tensor) -> Tensor:
    """log softmax(logits / temperature) over the vocabulary in float32, [N, V]."""
    return (logits(hidden_NW) / temperature_N[:, None]).log_softmax(-1)


def action_logps(head: Any, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
    """log pi of each action token, [N], differentiable, and the entropy of its distribution, [N], which is not.

    Memory does not grow with N * V.
    """
    if not isinstance(head, nn.Linear):
        return _by_calling(head, hidden_NW, action_N, temperature_N)
    n, fill, kind = len(action_N), -len(action_N) % ROUND, hidden_NW.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    hidden_NW, action_N = pad(hidden_NW.float(), (0, 0, 0, fill)), pad(action_N, (0, fill))
    temperature_N = pad(temperature_N, (0, fill), value=1.0)
    logp_N, entropy_N = _ActionLogps.apply(  # type: ignore[no-untyped-call]
        head, dtype, hidden_NW, head.weight, head.bias, action_N, temperature_N
    )
    return logp_N[:n], entropy_N[:n]


def _by_calling(head: Any, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
    """The same of a head that is more than a matrix, such as one with adapters."""

    def piece(hidden: Tensor, action: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        logp_NV = log_softmax(outlet(head, torch.float32), hidden, temperature)
        entropy_N = _entropy(logp_NV.exp(), logp_NV)
        return logp_NV.gather(-1, action[:, None])[:, 0], entropy_N.detach()

    made = [
        checkpoint(piece, hidden_NW[n], action_N[n], temperature_N[n], use_reentrant=False)
        for n in pieces(len(action_N), head.weight.shape[0])
    ]
    logp_N, entropy_N = (torch.cat(parts) for parts in zip(*made, strict=True))
    return logp_N, entropy_N


class _ActionLogps(torch.autograd.Function):
    """With p = softmax(z / T): d log p(a) / d z = (1[a] - p) / T. p is kept if it is small, else made again.

    z is the layer's output for hidden; all products are of numbers in dtype, as those of all other layers.
    """

    @staticmethod
    def forward(
        ctx: Any, layer: nn.Linear, dtype: torch.dtype, hidden_NW: Tensor, weight_VW: Tensor, bias_V: Tensor | None,
        action_N: Tensor, temperature_N: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        shape, logits = (len(action_N), len(weight_VW)), outlet(layer, dtype)
        keep = any(ctx.needs_input_grad) and shape[0] * shape[1] <= LOGITS_KEPT
        ctx.kept_NV = hidden_NW.new_empty(shape) if keep else None
        ctx.layer, ctx.dtype = layer, dtype  # not the logits, which may have a copy of the weights
        found = []
        for n in pieces(*shape):
            z_NV = logits(hidden_NW[n])
            p_NV = ctx.kept_NV[n] if keep else torch.empty_like(z_NV)
            found.append(_judged(z_NV, temperature_N[n], action_N[n], p_NV))
        logp_N, entropy_N = (torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.save_for_backward(hidden_NW, weight_VW, bias_V, action_N, temperature_N)
        ctx.mark_non_differentiable(entropy_N)
        return logp_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NW, weight_VW, bias_V, action_N, temperature_N = ctx.saved_tensors
        dhidden_NW, dweight_VW, dbias_V = (
            None if x is None or not needed else torch.zeros_like(x)
            for x, needed in zip((hidden_NW, weight_VW, bias_V), ctx.needs_input_grad[2:], strict=False)
        )
        scale_N, kept_NV = grad_N / temperature_N, ctx.kept_NV
        logits = None if kept_NV is not None else outlet(ctx.layer, ctx.dtype)
        hidden, weight = hidden_NW.to(ctx.dtype), weight_VW.to(ctx.dtype)
        for n in pieces(len(action_N), len(weight_VW)) if kept_NV is None else (slice(None),):
            p_NV = kept_NV
            if logits is not None:
                z_NV = logits(hidden_NW[n])
                p_NV = torch.empty_like(z_NV)
                _judged(z_NV, temperature_N[n], action_N[n], p_NV)
            # Into the same memory: nobody else needs the probabilities.
            dz_NV = p_NV.mul_(-scale_N[n, None]).scatter_add_(-1, action_N[n, None], scale_N[n, None])
            if dbias_V is not None:
                dbias_V += dz_NV.sum(0)
            dz_NV = dz_NV.to(ctx.dtype)
            if dhidden_NW is not None:
                dhidden_NW[n] = times(dz_NV, weight.t())
            if dweight_VW is not None and kept_NV is None:
                _add_product(dweight_VW, dz_NV, hidden[n])
            elif dweight_VW is not None:  # of all tokens: one product is the fastest
                dweight_VW = inner(dz_NV, hidden).to(dweight_VW.dtype)
        ctx.kept_NV = None
        return None, None, dhidden_NW, dweight_VW, dbias_V, None, None


def _add_product(total_VW: Tensor, dz_NV: Tensor, hidden_NW: Tensor) -> None:
    """total += dz' hidden. In one dtype without the product in memory, which is as large as the weights."""
    if dz_NV.dtype == total_VW.dtype:
        total_VW.addmm_(dz_NV.t(), hidden_NW)
    else:
        total_VW += inner(dz_NV, hidden_NW)


def _judged(z_NV: Tensor, temperature_N: Tensor, action_N: Tensor, p_NV: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(z / temperature) into p; the actions' log-probabilities and the entropies. Uses z up."""
    if usable(z_NV.device):
        logp_N, entropy_N = torch.empty(2, len(z_NV))
        compiled = module()
        assert compiled is not None and p_NV.is_contiguous()
        assert int(action_N.min()) >= 0 and int(action_N.max()) < z_NV.shape[1], "an action outside the vocabulary"
        given = (x.contiguous().numpy() for x in (z_NV, temperature_N, action_N))
        compiled.judge(*given, p_NV.numpy(), logp_N.numpy(), entropy_N.numpy())
        return logp_N, entropy_N
    z_NV.div_(temperature_N[:, None])
    z_NV.sub_(z_NV.logsumexp(-1, keepdim=True))  # in place, because fresh memory of this size is slow
    torch.exp(z_NV, out=p_NV)
    return z_NV.gather(-1, action_N[:, None])[:, 0], _entropy(p_NV, z_NV)


def _entropy(p_NV: Tensor, logp_NV: Tensor) -> Tensor:
    """Of each row's distribution, nats, [N]. Autocast would round it, as any product."""
    with torch.autocast(p_NV.device.type, enabled=False):
        found: Tensor = -torch.linalg.vecdot(p_NV, logp_NV)
    return found
