"""Attention over a prefix tree by PyTorch's public operator, as an implementation that transformers' models call.

``trunk(causal)(..., tree_attention=x)`` makes every layer hand its queries, keys and values to ``x.attend``; without
it, it is transformers' own attention (sdpa). ``backend`` tests which models can use it. Letters: N packed tokens; B
rows of L places each; H query heads, K key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from coevolve.compute.prefix_tree import Ids, PrefixTree, padded

NAME = "coevolve"

_OTHERS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Kinds of attention that we do not compute."""


class Attention(Protocol):
    """Attention of a whole model, layer by layer: [1, H, N, D] and twice [1, K, N, D] to [1, N, H, D]."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor: ...


class TreeAttention(Attention, Protocol):
    """Attention over the packed tokens of a prefix tree; ids_N and position_N: what is fed."""

    @property
    def ids_N(self) -> Tensor: ...

    @property
    def position_N(self) -> Tensor: ...


class RowAttention:
    """Packed tokens, filled up, put apart for attention alone: every row attends causally over its whole path, and each
    token keeps what the first row that has it found.

    What rows have in common is attended over once a row, and goes through all other layers once.
    """

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self.ids_N, self.position_N = padded(tree, device)
        new_N = np.ones(len(self.ids_N), bool)
        new_N[len(tree.ids_N) :] = False  # tokens that fill up are nobody's
        paths = [tree.leaf_B[b].path for b in _ends(tree)]
        self.blocks = [_Block.of([paths[i] for i in numbers], new_N, device) for numbers in _similar(paths)]
        order_N = torch.cat([block.token_X for block in self.blocks])
        self.place_N = torch.full((len(self.ids_N),), len(order_N), device=device)
        self.place_N[order_N] = torch.arange(len(order_N), device=device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """The same in every layer; differentiable."""
        found = []
        for block in self.blocks:
            q, k, v = (_taken(x, block.from_BL) for x in (query, key, value))
            shared = q.shape[1] != k.shape[1]
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=shared)
            found.append(embedding(block.place_X, out.transpose(1, 2).flatten(0, 1).flatten(1)))
        found.append(found[0].new_zeros(1, found[0].shape[1]))
        return torch.unflatten(embedding(self.place_N, torch.cat(found)), -1, (-1, value.shape[-1]))[None]


def _taken(x: Tensor, from_BL: Tensor) -> Tensor:
    """[1, H, N, D] to [B, H, L, D]. The gradient of an embedding is a fast sum."""
    x_BLX = embedding(from_BL, x[0].transpose(0, 1).flatten(1))
    return torch.unflatten(x_BLX, -1, (-1, x.shape[-1])).transpose(1, 2)


class _Block(NamedTuple):
    """Rows of similar length. from_BL: the packed token of every place. token_X, place_X: packed tokens that no block
    before has, and their places, all rows in one line."""

    from_BL: Tensor
    token_X: Tensor
    place_X: Tensor

    @classmethod
    def of(cls, paths: Sequence[Ids], new_N: Any, device: torch.device) -> _Block:
        """new_N: whether no block before has the token; these are taken from it."""
        longest = max(map(len, paths))
        from_BL = np.stack([np.pad(path, (0, longest - len(path)), "edge") for path in paths])
        token_X, place_X = np.unique(from_BL, return_index=True)  # the first of equal ones
        first_X = new_N[token_X]
        new_N[token_X] = False
        given = (from_BL, token_X[first_X], place_X[first_X])
        return cls(*(torch.from_numpy(x).to(device) for x in given))


def _ends(tree: PrefixTree) -> list[int]:
    """Rows that no other row goes on from, one of those that are equal."""
    parents = {id(segment.parent) for segment in tree.segments}
    rows = {id(leaf): b for b, leaf in enumerate(tree.leaf_B) if id(leaf) not in parents}
    return list(rows.values())


def _similar(paths: Sequence[Ids]) -> list[list[int]]:
    """Numbers of paths in blocks whose lengths differ by less than a factor of two."""
    blocks: dict[int, list[int]] = {}
    for i, path in enumerate(paths):
        blocks.setdefault(len(path).bit_length(), []).append(i)
    return list(blocks.values())


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """What transformers calls in every layer: [B, heads, S, D] in, [B, S, heads, D] out."""
    ours: Attention | None = kwargs.pop("tree_attention", None)
    if ours is None:
        found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return found
    for name in _OTHERS:
        if kwargs.get(name) is not None:
            raise NotImplementedError(name)
    if attention_mask is None or attention_mask.shape != no_mask(query.device).shape:
        raise NotImplementedError("a mask of the model's own")
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast, rotations leave them in float32
    scaling = kwargs.get("scaling")
    return ours.attend(module.layer_idx, query, key, value, scaling or query.shape[-1] ** -0.5), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def no_mask(device: torch.device) -> Tensor:
    """An attention mask that transformers passes on untouched, for attention that knows who sees whom."""
    return torch.zeros((1, 1, 1, 1), device=device)
