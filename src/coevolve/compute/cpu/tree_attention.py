"""Attention over a tree of packed tokens by compiled loops: each token looks at its own segment up to itself and then
along its path, where they lie.

PyTorch's attention needs rows side by side, filled up to equal lengths, so ``compute.attention`` copies all that it
has. Letters: N packed tokens, H query heads, K key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coevolve.compute.cpu import loops
from coevolve.compute.prefix_tree import PrefixTree, padded


class TreeAttention:
    """A tree's packed tokens, filled up (``prefix_tree.padded``), and attention over them.

    segments: as the loops take them: first token, number of tokens, and number of the parent, which is negative where
    there is none.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self.ids_N, self.position_N = padded(tree, torch.device("cpu"))
        numbers = {segment.place: number for number, segment in enumerate(tree.segments)}
        columns = zip(
            *((s.place, s.end - s.start, -1 if s.parent is None else numbers[s.parent.place]) for s in tree.segments),
            strict=True,
        )
        self.segments = tuple(np.array(column, np.int64) for column in columns)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[1, H, N, D] and twice [1, K, N, D] to [1, N, H, D]; the same in every layer; differentiable, once."""
        q, k, v = (x[0].transpose(0, 1).float().contiguous() for x in (query, key, value))
        out: Tensor = _Walked.apply(q, k, v, self, scaling)  # type: ignore[no-untyped-call]
        return out[None].to(query.dtype)


class _Walked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, walk: TreeAttention, scaling: float) -> Tensor:
        # Tokens that fill up are nobody's: they find nothing, and have no gradient.
        out, lse = torch.zeros_like(q), q.new_zeros(q.shape[:2])
        shape = (q.shape[1], *k.shape[1:])
        loops.walk(*_lines(q, k, v), shape, *walk.segments, np.float32(scaling), *_lines(out), lse.numpy())
        ctx.save_for_backward(q, k, v, lse)
        ctx.walk, ctx.scaling = walk, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, lse = ctx.saved_tensors
        grads, shape = [torch.zeros_like(x) for x in (q, k, v)], (q.shape[1], *k.shape[1:])
        given = (*_lines(grad.contiguous(), q, k, v), lse.numpy(), shape, *ctx.walk.segments, np.float32(ctx.scaling))
        loops.walk_gradient(*given, *_lines(*grads))
        return *grads, None, None


def _lines(*arrays: Tensor) -> Iterator[Any]:
    """As the loops take them, in the same memory."""
    return (x.detach().view(-1).numpy() for x in arrays)
