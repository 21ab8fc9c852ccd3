"""Attention by compiled loops: of packed tokens over their tree, and of a rollout's new tokens over its KV cache.

A packed token attends to its own segment up to itself and to the segments of its path, in place. (PyTorch's attention
needs rows padded to equal lengths, so ``compute.attention`` copies all keys and values.) The KV cache has a prompt's
keys and values once for all rows that continue it, and each row's own in preallocated memory.

Letters: N packed tokens; B rows, E prompts that still have rows, U all prompts, P tokens of the longest, T new tokens
at most, S = 1 new token; H query heads, K key heads, X = H + 2 K, D head dimension, W hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pad_sequence

from coevolve.compute.cpu import threads
from coevolve.compute.cpu.arrays import either
from coevolve.compute.cpu.loops import attention
from coevolve.compute.prefix_tree import PrefixTree, grow, padded
from coevolve.models.adapters import Adapters


class TreeAttention:
    """A tree's packed tokens, padded (``prefix_tree.padded``), and attention over them.

    segments: arrays for the loops: each segment's first token, number of tokens, and the number of its parent, -1 if
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
        """Return the attention's output of a layer: from [1, H, N, D] and twice [1, K, N, D] to [1, N, H, D];
        differentiable once."""
        q, k, v = (x[0].transpose(0, 1).float().contiguous() for x in (query, key, value))
        out: Tensor = _Walked.apply(q, k, v, self, scaling)  # type: ignore[no-untyped-call]
        return out[None].to(query.dtype)


class _Walked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, walk: TreeAttention, scaling: float) -> Tensor:
        # Padding tokens belong to no segment: their output and their gradients are 0.
        out, lse = torch.zeros_like(q), q.new_zeros(q.shape[:2])
        shape = (q.shape[1], *k.shape[1:])
        given = (*_lines(q, k, v), shape, *walk.segments, np.float32(scaling), *_lines(out), lse.numpy())
        _by_heads(attention.walk, given, k.shape[1], q.numel())
        ctx.save_for_backward(q, k, v, lse)
        ctx.walk, ctx.scaling = walk, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, lse = ctx.saved_tensors
        grads, shape = [torch.zeros_like(x) for x in (q, k, v)], (q.shape[1], *k.shape[1:])
        given = (*_lines(grad.contiguous(), q, k, v), lse.numpy(), shape, *ctx.walk.segments, np.float32(ctx.scaling))
        _by_heads(attention.walk_gradient, (*given, *_lines(*grads)), k.shape[1], q.numel())
        return *grads, None, None


def _by_heads(loop: Callable[..., None], given: Sequence[Any], keys: int, numbers: int) -> None:
    """Run a loop with the key heads divided among threads. numbers: of the queries."""
    count = min(keys, threads.count(numbers))
    bounds = [keys * i // count for i in range(count + 1)]
    threads.run([partial(loop, *given, start, stop) for start, stop in pairwise(bounds)])


def _lines(*arrays: Tensor) -> Iterator[Any]:
    """Yield flat arrays in the same memory, for the loops."""
    return (x.detach().view(-1).numpy() for x in arrays)


Forward = Callable[[Tensor, Tensor, Any], Tensor]
"""The model below its head, without gradient: (ids_BS, position_BS, attention) -> last hidden states [B, S, W]."""


class _Prefill:
    """Attention over packed prompts that keeps every layer's keys and values, each pair side by side, [N, K, 2 D]."""

    def __init__(self, packed: TreeAttention) -> None:
        self.packed = packed
        self.kept: dict[int, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.kept[layer] = torch.cat((key[0], value[0]), -1).float().transpose(0, 1)
        return self.packed.attend(layer, query, key, value, scaling)


class PrefixCache:
    """The ``KVCache`` of a rollout. prompt_B: the number of each row's prompt. steps: the most new tokens.

    speaker_U: the number of each prompt's adapter in ``adapters``; prompts with the same adapter are consecutive.
    """

    dead_share = 8

    def __init__(
        self,
        forward: Forward,
        adapters: Adapters,
        prompts: Sequence[Sequence[int]],
        speaker_U: Sequence[int],
        prompt_B: Sequence[int],
        steps: int,
    ) -> None:
        self.forward, self.steps, self.filled = forward, steps, 0
        tree = grow([np.array(prompt) for prompt in prompts], speaker_U)
        packed = TreeAttention(tree)
        # Padding tokens may have any adapter.
        adapters.split(np.pad(tree.kind_N, (0, len(packed.ids_N) - len(tree.kind_N)), "edge"))
        prefill = _Prefill(packed)
        hidden_1NW = forward(packed.ids_N[None], packed.position_N[None], prefill)
        path_U = [torch.from_numpy(leaf.path) for leaf in tree.leaf_B]
        self.hidden_UW = hidden_1NW[0, torch.stack([path[-1] for path in path_U])]
        self.prompt = {  # [E, K, P, 2 D] of every layer
            layer: pad_sequence([both_NKD[path] for path in path_U], batch_first=True).transpose(1, 2).contiguous()
            for layer, both_NKD in prefill.kept.items()
        }
        self.length_E, self.prompt_B = np.array([len(path) for path in path_U]), np.array(prompt_B)
        self.own: dict[int, Tensor] = {}
        """Per layer, [B, K, T, 2 D]: a row's keys and values of one head are contiguous."""
        self.arrays: dict[int, tuple[Any, ...]] = {}

    def step(self, ids_B: Tensor, position_B: Tensor) -> Tensor:
        """Feed one token per row and return the last hidden states, [B, W]."""
        hidden_BW = self.forward(ids_B[:, None], position_B[:, None], self)[:, 0]
        self.filled += 1
        return hidden_BW

    def attend_heads(self, layer: int, heads_BXD: Any, cos_BD: Any, sin_BD: Any, scaling: float) -> Tensor:
        """Return the attention's output for one new token per row, [B, 1, H, D]. heads_BXD: an array of queries, keys
        and values side by side, not rotated yet."""
        seen = self.seen(layer, heads_BXD.dtype)
        rows, heads, size = heads_BXD.shape
        out_BSHD = np.empty((rows, 1, heads - 2 * seen[0].shape[1], size), np.float32)
        attention.attend(heads_BXD, cos_BD, sin_BD, *seen, self.filled, scaling, out_BSHD[:, 0])
        return torch.from_numpy(out_BSHD)

    def seen(self, layer: int, kind: Any) -> tuple[Any, ...]:
        """Return a layer's arrays for the loops: the prompts' keys and values, their lengths, each row's prompt, and
        the rows' own keys and values. These have the dtype ``kind``, since most of attention's time is spent reading
        them. (Models with norms of heads have them in float32.)"""
        if layer not in self.arrays:
            prompt = self.prompt[layer]
            if layer not in self.own:
                dtype = torch.bfloat16 if kind == np.uint16 else torch.float32
                self.own[layer] = torch.empty(
                    (len(self.prompt_B), prompt.shape[1], self.steps, prompt.shape[3]), dtype=dtype
                )
            self.arrays[layer] = prompt.numpy(), self.length_E, self.prompt_B, either(self.own[layer])
        return self.arrays[layer]

    def keep(self, order_B: Tensor, holes: Tensor) -> None:
        """Replace each row b by row ``order_B[b]``, and drop the rows after the last; ``holes`` are the b where the two
        differ. Prompts without rows are dropped, too."""
        alive, self.prompt_B = np.unique(self.prompt_B[order_B.numpy()], return_inverse=True)
        if len(alive) < len(self.length_E):
            self.prompt = {layer: prompt[torch.from_numpy(alive)] for layer, prompt in self.prompt.items()}
            self.length_E = self.length_E[alive]
        movers = order_B[holes]
        for layer, own in self.own.items():
            own[holes, :, : self.filled] = own[movers, :, : self.filled]
            self.own[layer] = own[: len(order_B)]
        self.arrays.clear()
