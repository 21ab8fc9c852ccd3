"""Attention over a forest of packed tokens by compiled loops: each token looks at its own segment up to itself and then
along its path, where they lie.

PyTorch's attention needs runs side by side, filled up to equal lengths, so ``packed`` copies all that it has. Letters:
N packed tokens, H query heads, K key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coevolve.compute.prefix_tree import Forest


class Walk:
    """The segments of a forest as the loops take them: first token, number of tokens, and number of the parent, which
    is negative where there is none."""

    def __init__(self, forest: Forest, compiled: Any) -> None:
        self.compiled = compiled
        numbers = {segment.place: number for number, segment in enumerate(forest.segments)}
        columns = zip(
            *((s.place, s.end - s.start, -1 if s.parent is None else numbers[s.parent.place]) for s in forest.segments),
            strict=True,
        )
        self.segments = tuple(np.array(column, np.int64) for column in columns)

    def attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scaling: float) -> Tensor:
        """float32 and contiguous; differentiable, once. Raises NotImplementedError if values have another size."""
        if k_NKD.shape != v_NKD.shape:
            raise NotImplementedError("values of another size than keys")
        out: Tensor = _Walked.apply(q_NHD, k_NKD, v_NKD, self, scaling)  # type: ignore[no-untyped-call]
        return out


class _Walked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, walk: Walk, scaling: float) -> Tensor:
        # Tokens that fill up are nobody's: they find nothing, and have no gradient.
        out, lse = torch.zeros_like(q), q.new_zeros(q.shape[:2])
        shape = (q.shape[1], *k.shape[1:])
        walk.compiled.walk(*_lines(q, k, v), shape, *walk.segments, np.float32(scaling), *_lines(out), lse.numpy())
        ctx.save_for_backward(q, k, v, lse)
        ctx.walk, ctx.scaling = walk, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, lse = ctx.saved_tensors
        grads, shape = [torch.zeros_like(x) for x in (q, k, v)], (q.shape[1], *k.shape[1:])
        given = (*_lines(grad.contiguous(), q, k, v), lse.numpy(), shape, *ctx.walk.segments, np.float32(ctx.scaling))
        ctx.walk.compiled.walk_gradient(*given, *_lines(*grads))
        return *grads, None, None


def _lines(*arrays: Tensor) -> Iterator[Any]:
    """As the loops take them, in the same memory."""
    return (x.detach().view(-1).numpy() for x in arrays)
