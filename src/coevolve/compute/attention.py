"""Attention over a prefix tree by PyTorch's public operator, as an implementation that transformers' models call.

``trunk(causal)(..., tree_attention=x)`` makes every layer pass its queries, keys and values to ``x.attend``; without
this argument, transformers' own attention (sdpa) is used. ``backend`` tests which models can use it. Letters: N packed
tokens; M segments of Q places and paths of P; H query heads, K key heads, D head dimension.
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

from coevolve.compute.checkpointing import again
from coevolve.compute.prefix_tree import Ids, PrefixTree, Segment, padded

NAME = "coevolve"

_OTHERS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of kinds of attention that are not supported here."""


_COPIES = 4
_FEW = 1 << 14
"""Above so many places on paths per packed token, and in all, a layer's copies are recomputed in the backward."""


class Attention(Protocol):
    """A tree's packed tokens, and the attention of all layers of a model over it: from [1, H, N, D] and twice
    [1, K, N, D] to [1, N, H, D]."""

    ids_N: Tensor
    position_N: Tensor

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor: ...


class PathAttention:
    """A tree's packed tokens, padded, and the attention of each segment's tokens over its path; segments of similar
    length are computed together.

    Each segment has a copy of its path's keys and values. If these are many more than the tokens, each layer's copies
    are made again in the backward, so that those of two layers never exist at a time.
    """

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self.ids_N, self.position_N = padded(tree, device)
        sizes = [((s.end - s.start).bit_length(), s.end.bit_length()) for s in tree.segments]
        by_size = {size: [s for s, other in zip(tree.segments, sizes, strict=True) if other == size] for size in sizes}
        self.blocks = [_Block.of(segments, device) for segments in by_size.values()]
        self.many = sum(block.from_MP.numel() for block in self.blocks) > max(_COPIES * len(self.ids_N), _FEW)
        token_X = torch.cat([block.from_MQ[block.real_MQ] for block in self.blocks])
        self.place_N = torch.full((len(self.ids_N),), len(token_X), device=device)  # padding has no segment
        self.place_N[token_X] = torch.arange(len(token_X), device=device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Return the attention's output of a layer, [1, N, H, D]; differentiable."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        found = [
            again(block.attend, q, k, v, scaling) if self.many else block.attend(q, k, v, scaling)
            for block in self.blocks
        ]
        found.append(found[0].new_zeros(1, found[0].shape[1]))
        return torch.unflatten(embedding(self.place_N, torch.cat(found)), -1, (-1, value.shape[-1]))[None]


class _Block(NamedTuple):
    """M segments and their paths, padded to the longest. from_MQ, from_MP: the packed token at each place. real_MQ:
    which places are not padding. sees_M1QP: the attention mask, which path tokens each token attends to."""

    from_MQ: Tensor
    real_MQ: Tensor
    from_MP: Tensor
    sees_M1QP: Tensor

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device) -> _Block:
        from_MP, _ = _side_by_side([s.path for s in segments])
        from_MQ, real_MQ = _side_by_side([s.path[s.start :] for s in segments])
        last_MQ = np.array([s.start for s in segments])[:, None] + np.arange(from_MQ.shape[1])
        sees_M1QP = np.arange(from_MP.shape[1]) <= last_MQ[:, None, :, None]
        return cls(*(torch.from_numpy(x).to(device) for x in (from_MQ, real_MQ, from_MP, sees_M1QP)))

    def attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scaling: float) -> Tensor:
        """Return the attention output of the segments' tokens, [X, H D], one segment after the other."""
        given = (_taken(q_NHD, self.from_MQ), _taken(k_NKD, self.from_MP), _taken(v_NKD, self.from_MP))
        out = masked(*given, self.sees_M1QP, scaling, grouped=q_NHD.device.type == "cpu")
        return out.transpose(1, 2)[self.real_MQ].flatten(1)


class FlashAttention:
    """A tree's packed tokens, and their attention by FlashAttention (arXiv 2205.14135) over sequences of unequal
    lengths: a sequence's queries are a segment's tokens, its keys those on the segment's path. So nothing is padded or
    masked, and query heads share their key heads without copies of these. Only on GPUs, in 16 bits.

    The keys of paths are copied, and made again in the backward, as in ``PathAttention``.
    """

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self.ids_N, self.position_N = padded(tree, device)
        self.from_P = torch.from_numpy(np.concatenate([s.path for s in tree.segments])).to(device)
        places, paths = ([s.end - s.start for s in tree.segments], [s.end for s in tree.segments])
        self.starts_Q, self.starts_P = (_starts(lengths).to(device) for lengths in (places, paths))
        self.queries, self.longest = sum(places), (max(places), max(paths))
        self.many = len(self.from_P) > max(_COPIES * len(self.ids_N), _FEW)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Return the attention's output of a layer, [1, N, H, D]; differentiable."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        found = again(self._attend, q, k, v, scaling) if self.many else self._attend(q, k, v, scaling)
        return torch.nn.functional.pad(found, (0, 0, 0, 0, 0, len(q) - len(found)))[None]  # padding has no segment

    def _attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scaling: float) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn  # which older versions of PyTorch lack

        k_PKD, v_PKD = (torch.unflatten(embedding(self.from_P, x.flatten(1)), -1, x.shape[1:]) for x in (k_NKD, v_NKD))
        q_QHD = q_NHD[: self.queries].contiguous()
        # With a window of (-1, 0), the last query sees all keys of its sequence, and each before it one fewer.
        how: dict[str, Any] = {"scale": scaling, "window_size": (-1, 0), "enable_gqa": q_NHD.shape[1] != k_NKD.shape[1]}
        found = varlen_attn(q_QHD, k_PKD, v_PKD, self.starts_Q, self.starts_P, *self.longest, **how)
        assert isinstance(found, Tensor)
        return found


def _starts(lengths: Sequence[int]) -> Tensor:
    """Return where each of these runs starts if they are in one line, and where the last one ends."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def masked(query: Tensor, key: Tensor, value: Tensor, sees_M1QP: Tensor, scaling: float, *, grouped: bool) -> Tensor:
    """Apply PyTorch's attention with a mask: from [M, H, Q, D] and twice [M, K, P, D] to [M, H, Q, D].

    grouped: whether the kernel lets several query heads share a key head. On GPUs no kernel does so with a mask (see
    transformers' ``use_gqa_in_sdpa``), and PyTorch would keep all scores in memory instead: there each query head gets
    its own keys and values, H / K times the bytes.
    """
    shared = query.shape[1] // key.shape[1]
    if shared > 1 and not grouped:
        key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    grouped = grouped and shared > 1
    return scaled_dot_product_attention(query, key, value, attn_mask=sees_M1QP, scale=scaling, enable_gqa=grouped)


def _side_by_side(runs: Sequence[Ids]) -> tuple[Ids, Any]:
    """Return runs padded with their last number to one length, and which places are not padding."""
    longest = max(map(len, runs))
    real = np.arange(longest) < np.array([len(run) for run in runs])[:, None]
    return np.stack([np.pad(run, (0, longest - len(run)), "edge") for run in runs]), real


def _taken(x_NHD: Tensor, from_ML: Tensor) -> Tensor:
    """Return the tokens ``from_ML`` of x, [M, H, L, D]; by an embedding, whose gradient is a fast sum."""
    x_MLX = embedding(from_ML, x_NHD.flatten(1))
    return torch.unflatten(x_MLX, -1, x_NHD.shape[1:]).transpose(1, 2)


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of a layer; called by transformers: [B, heads, S, D] in, [B, S, heads, D] out."""
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
    """Return a dummy attention mask that transformers passes on unchanged, for attention that has its own mask."""
    return torch.zeros((1, 1, 1, 1), device=device)
