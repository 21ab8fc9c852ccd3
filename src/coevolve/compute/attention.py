"""Our attention as an implementation that transformers' models call; ``backend`` tests which models can use it.

``trunk(causal)(..., tree_attention=x)`` makes every layer hand its queries, keys and values to ``x.attend``: the packed
tokens of a prefix tree, or the KV cache of a rollout. Without it, it is transformers' own attention (sdpa).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from coevolve.compute import kernels

NAME = "coevolve"

_OURS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Kinds of attention that we do not compute."""


class Attention(Protocol):
    """Attention of a whole model, layer by layer: [B, H, S, D] and twice [B, K, S, D] to [B, S, H, D]."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor: ...


class TreeAttention(Attention, Protocol):
    """Attention over the packed tokens of a prefix tree; ids_N and position_N: what is fed."""

    @property
    def ids_N(self) -> Tensor: ...

    @property
    def position_N(self) -> Tensor: ...


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
    for name in _OURS:
        if kwargs.get(name) is not None:
            raise NotImplementedError(name)
    if attention_mask is None or attention_mask.shape != no_mask(query.device).shape:
        raise NotImplementedError("a mask of the model's own")
    if not kernels.wide(query.device):  # under autocast, rotations leave queries and keys in float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    scaling = kwargs.get("scaling")
    return ours.attend(module.layer_idx, query, key, value, scaling or query.shape[-1] ** -0.5), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def no_mask(device: torch.device) -> Tensor:
    """An attention mask that transformers passes on untouched, for attention that knows who sees whom."""
    return torch.zeros((1, 1, 1, 1), device=device)
