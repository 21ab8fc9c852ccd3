"""Matrix products on the CPU: in rollouts by a compiled loop over weights in panels (``loops.product``), in updates by
PyTorch or, where that is faster, by oneDNN.

PyTorch uses MKL for float32 matrix products, which has no AVX-512 on processors that are not Intel's. oneDNN's operator
is private to PyTorch, so it is tested once and used only if it exists and gives the right numbers. Letters: N rows, I
inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from coevolve.compute.cpu import threads
from coevolve.compute.cpu.arrays import array, buffer, either
from coevolve.compute.cpu.loops.product import WIDTH, laid, product
from coevolve.models.adapters import Adapters
from coevolve.runtime.processor import intel, multiplied_in

_FEW_ROWS = 16
"""Below so many rows PyTorch's default product is as fast."""

_PIECE = 384
"""Outputs that are multiplied at a time, few enough that weights converted to float32 are in the cache by then. It does
not depend on the number of threads, or results would."""


def times(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W' without gradient. Large products of bfloat16 are divided among threads."""
    if x.dtype == weight.dtype == torch.bfloat16 and _large(_rows(x), weight.numel()):
        return _in_pieces(x, weight.t(), x.dtype)
    return _product(x, weight) if available(x.dtype) else functional.linear(x, weight)


def inner(a_NO: Tensor, b_NI: Tensor) -> Tensor:
    """Return a' b without gradient, [O, I]. Large products of bfloat16 are divided among threads."""
    if a_NO.dtype == b_NI.dtype == torch.bfloat16 and _large(len(a_NO), a_NO.shape[1] * b_NI.shape[1]):
        return _in_pieces(a_NO.t(), b_NI, a_NO.dtype)
    if a_NO.dtype != torch.float32 or not available(torch.float32):
        return a_NO.t() @ b_NI
    a_NO, b_NI = a_NO.contiguous(), b_NI.contiguous()
    if a_NO.shape[1] <= b_NI.shape[1]:  # the left factor is rearranged: cheaper for the smaller one
        return _product(a_NO.t(), b_NI.t())
    return _product(b_NI.t(), a_NO.t()).t()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W' + b, differentiable. bfloat16 is multiplied in float32 where that is faster, and large products of
    it are divided among threads; else PyTorch's own product is used under autocast."""
    rows = _rows(x)
    if x.dtype == weight.dtype == torch.bfloat16:
        wide = multiplied_in(x.dtype, x.device, rows)
        if wide == torch.float32 or _large(rows, weight.numel()):
            divided: Tensor = _Divided.apply(x, weight, bias, wide)  # type: ignore[no-untyped-call]
            return divided
    if rows < _FEW_ROWS or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or not available(torch.float32):
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled():
        found: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    return _product(x, weight, bias)


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]


def _large(rows: int, weights: int) -> bool:
    """Return whether a product, or the gradient of its weights, is worth two threads, whether or not there are two."""
    return rows >= _FEW_ROWS and weights >= 2 * threads.SHARE


def side_by_side(layers: Sequence[Any], x: Tensor, adapters: Adapters | None) -> Tensor:
    """Return the outputs of linear layers for one input, side by side, differentiable: one product if none has
    adapters.

    For that product the weights of several layers are copied, and kept for the backward; weights held in bfloat16,
    which may be many, are not. adapters: those in use now.
    """
    if not any(hasattr(layer, "base_layer") or layer.weight.dtype == torch.bfloat16 for layer in layers):
        with torch.autocast("cpu", enabled=False):
            return linear(x, *joined_weights(layers, x.dtype))
    found = [_adapted(layer, x, adapters) for layer in layers]
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def _adapted(layer: Any, x: Tensor, adapters: Adapters | None) -> Tensor:
    base = getattr(layer, "base_layer", layer)
    y = linear(x, base.weight.to(x.dtype), base.bias)
    return y if base is layer or adapters is None else adapters.add([layer], x, y)


def joined_weights(layers: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return the weights and biases of layers side by side."""
    weights, biases = [layer.weight.to(dtype) for layer in layers], [layer.bias for layer in layers]
    if len(layers) == 1:
        return weights[0], None if biases[0] is None else biases[0].to(dtype)
    if all(bias is None for bias in biases):
        return torch.cat(weights), None
    zeros = (weight.new_zeros(len(weight)) for weight in weights)
    found = [zero if bias is None else bias.to(dtype) for bias, zero in zip(biases, zeros, strict=True)]
    return torch.cat(weights), torch.cat(found)


class _Linear(torch.autograd.Function):
    """The product x W' + b, whose gradients are two more such products."""

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


class _Divided(torch.autograd.Function):
    """The product x W' + b of bfloat16, divided among threads, and its gradients, two more such products. All are
    multiplied in the dtype ``wide``, in float32 or as they are, summed in float32 and rounded once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, wide: torch.dtype) -> Tensor:
        assert x.dtype == weight.dtype == torch.bfloat16
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.wide = wide
        return _in_pieces(x, weight.t(), wide, None if bias is None else bias.to(weight.dtype).to(wide))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_NO = grad.flatten(0, -2)
        return (
            _in_pieces(grad, weight, ctx.wide) if needs_x else None,
            _in_pieces(grad_NO.t(), x.flatten(0, -2), ctx.wide) if needs_weight else None,
            grad_NO.float().sum(0) if needs_bias else None,
            None,
        )


def _in_pieces(x: Tensor, weight_IO: Tensor, wide: torch.dtype, bias_O: Tensor | None = None) -> Tensor:
    """Return x W + b in x's dtype, multiplied in ``wide`` without gradient. Weights are converted piece by piece, and
    the pieces are divided among threads."""
    x_NI = x.detach().flatten(0, -2).to(wide)
    out_NO = x.new_empty((len(x_NI), weight_IO.shape[1]))
    inference = torch.is_inference_mode_enabled()

    def multiply(pieces: Sequence[slice]) -> None:
        # These settings are per thread.
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", enabled=False):
            for o in pieces:
                weight = weight_IO[:, o].to(wide)
                out_NO[:, o] = x_NI @ weight if bias_O is None else torch.addmm(bias_O[o], x_NI, weight)

    pieces = [slice(start, start + _PIECE) for start in range(0, weight_IO.shape[1], _PIECE)]
    count = min(len(pieces), threads.count(max(weight_IO.numel(), out_NO.numel())))
    threads.run([partial(multiply, pieces[i::count]) for i in range(count)])
    return out_NO.view(*x.shape[:-1], -1)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


@cache
def available(dtype: torch.dtype) -> bool:
    """Return whether to use oneDNN's products: in float32 on processors with AVX-512 that are not Intel's, where MKL is
    half as fast. On Intel's, MKL is faster (weights' gradients up to 1.5 times) and compiles nothing for a new shape;
    with AVX2 only, MKL is faster, too (updates 1.05 to 1.1 times).

    The choice is not made by timing, since a machine must compute the same bits in every run.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or (dtype == torch.float32 and intel()):
        return False
    return right(dtype)


def right(dtype: torch.dtype) -> bool:
    """Return whether oneDNN exists and is right in this dtype; it supports bfloat16 on some processors only."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).to(dtype) for shape in ((64, 96), (128, 96)))
    off = 1e-4 if dtype == torch.float32 else 2e-2  # relative to numbers of about 10
    try:
        with torch.autocast("cpu", enabled=False):  # the first call may be under autocast
            many, wanted = _product(x, weight), functional.linear(x, weight)
            turned = _product(x, weight.t().contiguous().t())
        return all(torch.allclose(found, wanted, rtol=off, atol=off) for found in (many, turned))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False  # this PyTorch has no such operator, or not for this processor


def packed(weights_OI: Sequence[Tensor], dtype: torch.dtype) -> Any:
    """Return these weights in panels (``loops.product``), outputs side by side, as a flat array."""
    wide, counts = WIDTH, [len(weight) for weight in weights_OI]
    if any(count % wide for count in counts[:-1]):
        return packed([torch.cat(list(weights_OI))], dtype)
    panels_L, _ = buffer((-(-sum(counts) // wide) * wide * weights_OI[0].shape[1],), dtype)
    for weight_OI, first in zip(weights_OI, np.cumsum([0, *counts]), strict=False):
        laid(array(weight_OI.contiguous()), first, panels_L)
    return panels_L


_KEPT: WeakKeyDictionary[nn.Module, dict[Any, Panels]] = WeakKeyDictionary()
"""Copies of frozen weights, by the first layer and then by output dtype and the other layers."""


def panels(layers: Sequence[nn.Linear], dtype: torch.dtype, out: torch.dtype | None = None) -> Panels:
    """Return ``Panels`` of these layers: a copy of their current weights or, for frozen weights that are held in
    bfloat16 (``models.narrow``), a copy that is made once and kept."""
    if dtype != torch.bfloat16 or any(x.weight.dtype != dtype or x.weight.requires_grad for x in layers):
        return Panels(layers, dtype, out)
    kept, key = _KEPT.setdefault(layers[0], {}), (out, *map(id, layers[1:]))
    if key not in kept:
        kept[key] = Panels(layers, dtype, out)
    return kept[key]


class Panels:
    """Layers with the same input as one product with a copy of their weights, outputs side by side, computed in dtype.
    out: the dtype of the outputs, by default the same."""

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype, out: torch.dtype | None = None) -> None:
        assert dtype == torch.float32 or layers[0].in_features % 2 == 0, "bfloat16 comes in pairs"
        self.dtype, self.out = dtype, out or dtype
        self.panels_L = packed([layer.weight.detach() for layer in layers], dtype)
        zeros = (np.zeros(len(layer.weight), np.float32) for layer in layers)
        # Rounded to the outputs' dtype, as in updates, or samplers and learners would give different numbers.
        biases = (None if layer.bias is None else array(layer.bias.detach().to(self.out)) for layer in layers)
        self.bias_O = np.concatenate([zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)])

    def __call__(self, x: Tensor) -> Tensor:
        x_NI = either(x.to(self.dtype).contiguous()).reshape(-1, x.shape[-1])
        out_NO, out = buffer((len(x_NI), len(self.bias_O)), self.out)
        threads.run([partial(self._part, x_NI, out_NO, share) for share in self._shares()])
        return out.view(*x.shape[:-1], -1)

    def _part(self, x_NI: Any, out_NO: Any, outputs: range) -> None:
        product(x_NI, self.panels_L, self.bias_O, out_NO, outputs.start, outputs.stop)

    def _shares(self) -> list[range]:
        """Return each thread's range of outputs: whole panels, enough to be worth a thread."""
        outputs = len(self.bias_O)
        wide = -(-outputs // (threads.count(len(self.panels_L)) * WIDTH)) * WIDTH
        return [range(start, min(start + wide, outputs)) for start in range(0, outputs, wide)]
