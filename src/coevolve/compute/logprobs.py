"""The LM head: logits of hidden states, always in float32, and log-probabilities of actions without keeping the whole
vocabulary's numbers for every token.

In bfloat16 the head's inputs and weights are rounded, as those of all other layers are; sums and logits are not,
because at a logit of 40 bfloat16's steps are 0.25. Letters: N rows or action tokens, V vocabulary, W hidden size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear, pad

from coevolve.compute.checkpointing import again
from coevolve.interfaces import LMHead, Reference
from coevolve.maths import kl
from coevolve.runtime.processor import multiplied_in


def lm_head(layer: Any, dtype: torch.dtype) -> LMHead:
    """Return a function from hidden states to logits, valid while the layer's weights do not change. dtype: of the
    numbers that are multiplied.

    In bfloat16 the function holds a copy of the weights, and logits have no gradient. A layer that is more than a
    matrix, such as one with adapters, is called itself, in float32.
    """
    if dtype == torch.float32 or not isinstance(layer, nn.Linear):
        return partial(as_it_is, layer)
    return _of_rounded(layer, dtype)


def as_it_is(layer: Any, hidden_NW: Tensor) -> Tensor:
    """Return the layer's own output in float32; differentiable."""
    with torch.autocast(hidden_NW.device.type, enabled=False):
        found: Tensor = layer(hidden_NW.float())
    return found


def _of_rounded(layer: nn.Linear, dtype: torch.dtype) -> LMHead:
    """Return the function of ``lm_head`` for rounded weights. If PyTorch has no product of such numbers with float32
    sums, they are multiplied in float32, which gives the same."""
    weight_VW, bias_V = layer.weight.detach().to(dtype), None if layer.bias is None else layer.bias.detach().float()
    product = _summed if _sums_wide(weight_VW.device, dtype) else functional.linear
    weight_VW = weight_VW if product is _summed else weight_VW.float()

    def logits(hidden_NW: Tensor) -> Tensor:
        with torch.autocast(hidden_NW.device.type, enabled=False):
            return product(hidden_NW.to(dtype).to(weight_VW.dtype), weight_VW, bias_V)

    return logits


def _summed(hidden_NW: Tensor, weight_VW: Tensor, bias_V: Tensor | None) -> Tensor:
    logits_NV = torch.mm(hidden_NW, weight_VW.t(), out_dtype=torch.float32)
    return logits_NV if bias_V is None else logits_NV.add_(bias_V)


@cache
def _sums_wide(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether PyTorch has a product of this dtype with float32 sums on the device, as on NVIDIA's GPUs."""
    if device.type == "cpu":
        return False
    try:
        x_12 = torch.tensor([[256.0, 1.0]], device=device, dtype=dtype)
        wide = _summed(x_12, x_12, None).item() == 65537  # which is 65536 in bfloat16
    except (TypeError, RuntimeError, NotImplementedError):
        wide = False
    if not wide:
        warnings.warn(
            f"PyTorch {torch.__version__} has no product of {dtype} with float32 sums on {device}; the output layer "
            "computes in float32, which is slower and takes twice the memory of its weights",
            stacklevel=2,
        )
    return wide


LOGITS_AT_ONCE = 1 << 20
"""Logits made at a time on a CPU: few enough for its cache."""

LOGITS_KEPT = 1 << 24
"""Above so many logits, probabilities are recomputed in the backward."""


ROUND = 64
"""Tokens are padded to a multiple of this: the CPU's math library keeps data for every shape that it has seen."""


LEAST_ROWS = 128
"""The least number of tokens at a time, however large the vocabulary: products of few rows are slow."""

GPU_ROWS = 2048
"""Tokens at a time on a GPU, which has no such cache and adds each piece's gradient to that of all weights."""


def pieces(n: int, vocabulary: int, device: torch.device) -> Iterator[slice]:
    """Return slices of n action tokens, each with few enough logits for the device."""
    size = max(LEAST_ROWS, LOGITS_AT_ONCE // vocabulary) if device.type == "cpu" else GPU_ROWS
    return (slice(start, start + size) for start in range(0, n, size))


class Operations(NamedTuple):
    """The operations that log-probabilities are computed with. lm_head: (layer, dtype) -> an ``LMHead``.

    times: x W'. inner: a' b.
    """

    lm_head: Callable[[Any, torch.dtype], LMHead]
    times: Callable[[Tensor, Tensor], Tensor]
    inner: Callable[[Tensor, Tensor], Tensor]


def log_softmax(logits: LMHead, hidden_NW: Tensor, temperature_N: Tensor) -> Tensor:
    """Return log softmax(logits / temperature) over the vocabulary in float32, [N, V]."""
    return (logits(hidden_NW) / temperature_N[:, None]).log_softmax(-1)


def action_logps(
    layer: Any,
    hidden_NW: Tensor,
    action_N: Tensor,
    temperature_N: Tensor,
    use: Operations | None = None,
    reference: Reference | None = None,
) -> tuple[Tensor, ...]:
    """Return each action token's log-probability and the entropy of its distribution in nats; with a reference also the
    KL(policy || reference) over the vocabulary. [N] each; differentiable.

    layer: the LM head. Memory does not grow with N * V.
    """
    if not isinstance(layer, nn.Linear):
        return _by_calling(layer, hidden_NW, action_N, temperature_N, reference)
    n, fill, kind = len(action_N), -len(action_N) % ROUND, hidden_NW.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    hidden_NW, action_N = pad(hidden_NW.float(), (0, 0, 0, fill)), pad(action_N, (0, fill))
    temperature_N = pad(temperature_N, (0, fill), value=1.0)
    if reference is not None:
        reference = reference._replace(hidden_NW=pad(reference.hidden_NW, (0, 0, 0, fill)))
    found = _ActionLogps.apply(  # type: ignore[no-untyped-call]
        use or PLAIN, layer, dtype, hidden_NW, layer.weight, layer.bias, action_N, temperature_N, reference,
        torch.is_grad_enabled(),
    )  # fmt: skip
    return tuple(x_N[:n] for x_N in found)


def _by_calling(
    layer: Any, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor, reference: Reference | None
) -> tuple[Tensor, ...]:
    """Return the result of ``action_logps`` for a head that is more than a matrix, such as one with adapters."""

    def piece(n: slice, hidden: Tensor) -> tuple[Tensor, ...]:
        logp_NV = (as_it_is(layer, hidden) / temperature_N[n, None]).log_softmax(-1)
        found = logp_NV.gather(-1, action_N[n, None])[:, 0], _entropy(logp_NV.exp(), logp_NV)
        if reference is None:
            return found
        return *found, kl.full(logp_NV, log_softmax(reference.logits, reference.hidden_NW[n], temperature_N[n]))

    parts = pieces(len(action_N), layer.weight.shape[0], hidden_NW.device)
    made = [again(piece, n, hidden_NW[n]) for n in parts]
    return tuple(torch.cat(parts) for parts in zip(*made, strict=True))


class _ActionLogps(torch.autograd.Function):
    """With p = softmax(z / T), H its entropy and K its KL from q: d log p(a) / d z = (1[a] - p) / T,
    d H / d z = -p (log p + H) / T and d K / d z = p (log p - log q - K) / T.

    p is kept if it is small, else recomputed. z is the layer's output for hidden; all products are of numbers in dtype,
    as in all other layers.
    """

    @staticmethod
    def forward(
        ctx: Any, use: Operations, layer: nn.Linear, dtype: torch.dtype, hidden_NW: Tensor, weight_VW: Tensor,
        bias_V: Tensor | None, action_N: Tensor, temperature_N: Tensor, reference: Reference | None, learns: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        shape, logits = (len(action_N), len(weight_VW)), use.lm_head(layer, dtype)
        keep = learns and any(ctx.needs_input_grad) and shape[0] * shape[1] <= LOGITS_KEPT
        ctx.kept_NV = hidden_NW.new_empty(shape) if keep else None
        ctx.use, ctx.layer, ctx.dtype = use, layer, dtype  # not ``logits``, which may hold a copy of the weights
        ctx.reference = reference
        ctx.set_materialize_grads(False)
        found = []
        for n in pieces(*shape, hidden_NW.device):
            z_NV = logits(hidden_NW[n])
            p_NV = ctx.kept_NV[n] if keep else torch.empty_like(z_NV)
            said: tuple[Tensor, ...] = _softmax(z_NV, temperature_N[n], action_N[n], p_NV)
            if reference is not None:  # z is log p by now
                log_q_NV = log_softmax(reference.logits, reference.hidden_NW[n], temperature_N[n])
                said = (*said, kl.full(z_NV, log_q_NV))
            found.append(said)
        logp_N, *rest = (torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.save_for_backward(hidden_NW, weight_VW, bias_V, action_N, temperature_N, *rest)
        return logp_N, *rest

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor | None, *grad_rest: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_NW, weight_VW, bias_V, action_N, temperature_N, *rest = ctx.saved_tensors
        dhidden_NW, dweight_VW, dbias_V = (
            None if x is None or not needed else torch.zeros_like(x)
            for x, needed in zip((hidden_NW, weight_VW, bias_V), ctx.needs_input_grad[3:], strict=False)
        )
        scale_N, *scales = (None if x is None else x / temperature_N for x in (grad_N, *grad_rest))
        kept_NV = ctx.kept_NV
        logits = None if kept_NV is not None else ctx.use.lm_head(ctx.layer, ctx.dtype)
        wide = multiplied_in(ctx.dtype, hidden_NW.device, len(action_N))
        hidden, weight = hidden_NW.to(ctx.dtype).to(wide), weight_VW.to(ctx.dtype).to(wide)
        parts = pieces(len(action_N), len(weight_VW), hidden_NW.device) if kept_NV is None else (slice(None),)
        for n in parts:
            p_NV = kept_NV
            if logits is not None:
                z_NV = logits(hidden_NW[n])
                p_NV = torch.empty_like(z_NV)
                _softmax(z_NV, temperature_N[n], action_N[n], p_NV)
            more_NV = _sums_gradient(ctx.reference, n, p_NV, temperature_N, rest, scales)
            dz_NV = _logits_gradient(p_NV, action_N[n], None if scale_N is None else scale_N[n], more_NV)
            if dbias_V is not None:
                dbias_V += dz_NV.sum(0)
            dz_NV = dz_NV.to(ctx.dtype).to(wide)
            if dhidden_NW is not None:
                dhidden_NW[n] = ctx.use.times(dz_NV, weight.t())
            if dweight_VW is not None and kept_NV is None:
                _add_product(dweight_VW, dz_NV, hidden[n], ctx.use)
            elif dweight_VW is not None:  # one product over all tokens is the fastest
                dweight_VW = ctx.use.inner(dz_NV, hidden).to(dweight_VW.dtype)
        ctx.kept_NV = None
        return None, None, None, dhidden_NW, dweight_VW, dbias_V, None, None, None, None


def _logits_gradient(p_NV: Tensor, action_N: Tensor, scale_N: Tensor | None, more_NV: Tensor | None) -> Tensor:
    """Return the gradient of the logits: from that of the log-probabilities over the temperature (``scale_N``), plus
    ``more_NV``. Overwrites p, which is not needed afterwards."""
    if scale_N is None:
        return p_NV.zero_() if more_NV is None else more_NV
    dz_NV = p_NV.mul_(-scale_N[:, None]).scatter_add_(-1, action_N[:, None], scale_N[:, None])
    return dz_NV if more_NV is None else dz_NV.add_(more_NV)


def _sums_gradient(
    reference: Reference | None,
    n: slice,
    p_NV: Tensor,
    temperature_N: Tensor,
    sums: Sequence[Tensor],
    scales: Sequence[Tensor | None],
) -> Tensor | None:
    """Return the gradient of a piece's logits from those of entropies and KLs (``sums``), over the temperature
    (``scales``); None if there is none."""
    if all(scale_N is None for scale_N in scales):
        return None
    logp_NV = p_NV.clamp(min=torch.finfo(p_NV.dtype).tiny).log_()
    (entropy_N, entropy_scale_N), *kls = zip(sums, scales, strict=True)
    found_NV = None
    for kl_N, scale_N in kls:
        if scale_N is not None:
            assert reference is not None
            log_q_NV = log_softmax(reference.logits, reference.hidden_NW[n], temperature_N[n])
            apart_NV = torch.sub(logp_NV, log_q_NV, out=log_q_NV).sub_(kl_N[n, None])
            found_NV = apart_NV.mul_(p_NV).mul_(scale_N[n, None])
    if entropy_scale_N is not None:
        entropic_NV = logp_NV.add_(entropy_N[n, None]).mul_(p_NV).mul_(-entropy_scale_N[n, None])
        found_NV = entropic_NV if found_NV is None else found_NV.add_(entropic_NV)
    return found_NV


def _add_product(total_VW: Tensor, dz_NV: Tensor, hidden_NW: Tensor, use: Operations) -> None:
    """Add dz' hidden to the total; if the dtypes are equal, without holding the product, as large as the weights."""
    if dz_NV.dtype == total_VW.dtype:
        total_VW.addmm_(dz_NV.t(), hidden_NW)
    else:
        total_VW += use.inner(dz_NV, hidden_NW)


def _softmax(z_NV: Tensor, temperature_N: Tensor, action_N: Tensor, p_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the actions' log-probabilities and the entropies, [N] each. Writes softmax(z / temperature) to p and its
    logarithm to z."""
    z_NV.div_(temperature_N[:, None])
    z_NV.sub_(z_NV.logsumexp(-1, keepdim=True))  # in place, because fresh memory of this size is slow
    torch.exp(z_NV, out=p_NV)
    return z_NV.gather(-1, action_N[:, None])[:, 0], _entropy(p_NV, z_NV)


def _entropy(p_NV: Tensor, logp_NV: Tensor) -> Tensor:
    """Return the entropy of each row's distribution in nats, [N]. Autocast is off because it would round the
    product."""
    with torch.autocast(p_NV.device.type, enabled=False):
        found: Tensor = -torch.linalg.vecdot(p_NV, logp_NV)
    return found


PLAIN = Operations(lm_head, linear, lambda a_NO, b_NI: a_NO.t() @ b_NI)
"""PyTorch's own operations."""
