"""Our attention as an implementation that transformers' models call, and the test of which models can use it.

``trunk(causal)(..., sharing=x)`` makes every layer hand its queries, keys and values to ``x.attend``: a ``Packed``
forest or the ``Cascade`` of a rollout. Without ``sharing`` it is transformers' own attention (sdpa).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from coevolve.policies.forest import grow
from coevolve.policies.packed import pack

NAME = "coevolve"

_OURS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Kinds of attention that we do not compute."""


class Sharing(Protocol):
    """Attention in which rows share what they have in common."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor: ...


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """What transformers calls in every layer: [B, heads, S, D] in, [B, S, heads, D] out."""
    sharing: Sharing | None = kwargs.pop("sharing", None)
    if sharing is None:
        found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return found
    for name in _OURS:
        if kwargs.get(name) is not None:
            raise NotImplementedError(name)
    scaling = kwargs.get("scaling")
    return sharing.attend(module.layer_idx, query, key, value, scaling or query.shape[-1] ** -0.5), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def shares(causal: Any) -> bool:
    """Whether the model computes with ``sharing``."""
    return bool(causal.config.get_text_config()._attn_implementation == NAME)


def no_mask(device: torch.device) -> Tensor:
    """An attention mask that transformers passes on untouched, for attention that knows who sees whom."""
    return torch.zeros((1, 1, 1, 1), device=device)


@torch.no_grad()
def use_sharing(causal: Any) -> bool:
    """Let the model compute with ``sharing`` if that gives what it gives without; returns whether it does.

    Other models (sliding windows, capped scores, positions of another kind) keep transformers' own attention.
    """
    vocabulary = causal.config.get_text_config().vocab_size
    rows = [np.array([*range(12), *tail]) % vocabulary for tail in ((5, 3, 8), (4, 1), ())]
    plain = [causal(input_ids=torch.tensor(row, device=causal.device)[None]).logits[0] for row in rows]
    before = causal.config._attn_implementation
    try:
        causal.set_attn_implementation(NAME)
        forest = grow(rows)
        packed = pack(forest, causal.device)
        found = causal(
            input_ids=packed.ids_N[None],
            position_ids=packed.position_N[None],
            attention_mask=no_mask(causal.device),
            use_cache=False,
            sharing=packed,
        ).logits[0]
        same = shares(causal) and all(
            torch.allclose(found[torch.from_numpy(leaf.path)], row, rtol=1e-3, atol=1e-4 * float(row.abs().max()))
            for leaf, row in zip(forest.leaf_B, plain, strict=True)
        )
    except (TypeError, ValueError, NotImplementedError, AttributeError, IndexError, RuntimeError):
        same = False  # a model that takes no extra argument, or whose attention is of another kind
    if not same:
        causal.set_attn_implementation(before)
    return same
