"""Linear layers through oneDNN on the CPU: the same results as PyTorch's default, faster on many processors.

PyTorch hands float32 matrix products to MKL, which is slow on processors that are not Intel's; and it lays weights
out anew for every product, which a rollout's many small products feel. The operators used here are private to
PyTorch, so they are tried once and used only where they are there and right; elsewhere nothing changes. Letters: N
rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from coevolve.compute.cpu.panels import Panels

_FEW_ROWS = 16
"""Below it the default is as fast."""


def times(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W' + b without gradient, the fastest way there is here."""
    return _product(x, weight, bias) if _onednn(x) else functional.linear(x, weight, bias)


def inner(a_NO: Tensor, b_NI: Tensor) -> Tensor:
    """a' b without gradient, [O, I], the fastest way there is here."""
    if a_NO.dtype != torch.float32 or not _onednn(a_NO):
        return a_NO.t() @ b_NI
    a_NO, b_NI = a_NO.contiguous(), b_NI.contiguous()
    if a_NO.shape[1] <= b_NI.shape[1]:  # the left factor is laid out anew, which is cheaper for the smaller one
        return _product(a_NO.t(), b_NI.t())
    return _product(b_NI.t(), a_NO.t()).t()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


class _Linear(torch.autograd.Function):
    """x W' + b; the gradients are two more such products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_NO, x_NI = grad.flatten(0, -2), x.flatten(0, -2)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _product(grad, weight.t()) if needs_x else None,
            inner(grad_NO, x_NI) if needs_weight else None,
            grad_NO.sum(0) if needs_bias else None,
        )


def _fast(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    few = x.numel() < _FEW_ROWS * x.shape[-1]
    if few or x.dtype != torch.float32 or torch.is_autocast_enabled(x.device.type) or not _onednn(x):
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled():
        found: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    return _product(x, weight, bias)


def _onednn(x: Tensor) -> bool:
    return x.device.type == "cpu" and available(x.dtype)


class FastLinear(nn.Linear):
    """nn.Linear, by the fastest way. packed: how it computes while its weights do not change."""

    packed: Callable[[Tensor], Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        return _fast(input, self.weight, self.bias) if self.packed is None else self.packed(input)


MOST = 1 << 28
"""Weights of a model's products that are copied for a rollout at most: for a while they are in memory twice."""

_ROWS = 64
"""Rows that packed weights are laid out for; others are computed too."""


@contextmanager
def packed(model: nn.Module, dtype: torch.dtype, compiled: Any | None) -> Iterator[None]:
    """Let the linear layers compute in dtype with copies of their weights made for it; these must not change inside.
    compiled: the loops, if there are any."""
    fast = [module for module in model.modules() if isinstance(module, FastLinear)]
    if sum(layer.weight.numel() for layer in fast if compiled is not None or _onednn(layer.weight)) > MOST:
        fast = []
    try:
        for layer in fast:
            layer.packed = laid_out([layer], dtype, compiled)
        yield
    finally:
        for layer in fast:
            layer.packed = None


def laid_out(layers: Sequence[nn.Linear], dtype: torch.dtype, compiled: Any | None) -> Callable[[Tensor], Tensor]:
    """The layers' outputs for one input, side by side, computed in dtype with a copy of their weights made for it: by
    the compiled product where there are loops."""
    if compiled is not None and Panels.serve(layers, dtype):
        return Panels(layers, dtype, compiled)
    weight, bias = (None if x is None else x.detach() for x in _joined(layers, dtype))
    assert weight is not None
    if not _onednn(weight):
        return lambda x: functional.linear(x.to(dtype), weight, bias)
    laid = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return lambda x: _product(x.to(dtype), laid, bias)


def side_by_side(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """The layers' outputs for one input, side by side, differentiable: one product if they are nothing but linear.

    Weights of several layers are then copied, and kept for the backward.
    """
    plain = [layer for layer in layers if isinstance(layer, nn.Linear) and type(layer) in (nn.Linear, FastLinear)]
    if len(plain) < len(layers):
        found = [layer(x) for layer in layers]
        return found[0] if len(found) == 1 else torch.cat(found, -1)
    with torch.autocast(x.device.type, enabled=False):
        return _fast(x, *_joined(plain, x.dtype))


def _joined(layers: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The weights and biases of layers side by side."""
    weights, biases = [layer.weight.to(dtype) for layer in layers], [layer.bias for layer in layers]
    if len(layers) == 1:
        return weights[0], None if biases[0] is None else biases[0].to(dtype)
    if all(bias is None for bias in biases):
        return torch.cat(weights), None
    zeros = (weight.new_zeros(len(weight)) for weight in weights)
    found = [zero if bias is None else bias.to(dtype) for bias, zero in zip(biases, zeros, strict=True)]
    return torch.cat(weights), torch.cat(found)


def use_fast_linear(model: nn.Module) -> None:
    """Let the linear layers of a float32 model compute the fastest way."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FastLinear


@cache
def available(dtype: torch.dtype = torch.float32) -> bool:
    """Whether oneDNN is there and right in this dtype; bfloat16 it has on some processors only.

    Not timed: the same machine must compute the same bits in every run.
    """
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).to(dtype) for shape in ((64, 96), (128, 96)))
    off = 1e-4 if dtype == torch.float32 else 2e-2  # relative to numbers of about 10
    try:
        with torch.autocast("cpu", enabled=False):  # whoever asks first may be computing in bfloat16
            few = _product(x[:5], torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS))
            many, wanted = _product(x, weight), functional.linear(x, weight)
            turned = _product(x, weight.t().contiguous().t())
        pairs = ((many, wanted), (few, wanted[:5]), (turned, wanted))
        return all(torch.allclose(found, right, rtol=off, atol=off) for found, right in pairs)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False  # this PyTorch has no such operator, or not for this processor
