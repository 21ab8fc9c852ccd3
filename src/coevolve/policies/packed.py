"""Attention over a forest of packed tokens: a token sees its path and its own segment up to itself, nothing else.

Segments are handled in blocks of one depth and similar length. Letters: N packed tokens, M parents in a block, C children of
a parent, L tokens of a child, P tokens of a parent's path, H query heads, K key heads, R = H / K, D head dimension; X all
places of all blocks, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from coevolve.policies.forest import Forest, Ids, Segment

ROUND = 64
"""Packed tokens are filled up to a multiple of it: a processor's library keeps something for every shape it has seen."""

LONG = 1024
"""Beyond it, scores are not held for the gradient even where that is faster."""


@dataclass(frozen=True, slots=True)
class Block:
    """own_X: packed number of each place, M x C x L of them. path_MP: those of the paths, None at the roots. late_MP:
    True where a path is padded, None if none is. Padding points at token 0; nothing ever looks at it."""

    shape: tuple[int, int, int]
    own_X: Tensor
    path_MP: Tensor | None
    late_MP: Tensor | None


@dataclass(frozen=True, slots=True)
class Packed:
    """The blocks of a forest on a device, ready for attention. place_N: where each token's result stands.

    N is filled up with tokens that nobody looks at.
    """

    ids_N: Tensor
    position_N: Tensor
    blocks: list[Block]
    place_N: Tensor

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[1, H, N, D] and twice [1, K, N, D] to [1, N, H, D]; the same in every layer."""
        heads, dtype = query.shape[1], query.dtype
        with torch.autocast(query.device.type, enabled=False):
            q_ND, k_ND, v_ND = (_flat(x, value.dtype) for x in (query, key, value))
            shape = (heads, key.shape[1], key.shape[3])
            made = [_block(block, q_ND, k_ND, v_ND, shape, scaling) for block in self.blocks]
            out_ND = _take(made[0] if len(made) == 1 else torch.cat(made), self.place_N)
        return out_ND.view(1, len(self.place_N), heads, -1).to(dtype)


def pack(forest: Forest, device: torch.device) -> Packed:
    """The forest as index tensors on the device."""
    fill = -len(forest.ids_N) % ROUND
    place_N = np.zeros(len(forest.ids_N) + fill, np.int64)
    blocks, done = [], 0
    for families in _families(forest.segments):
        block, places = _index(families)
        for segment, first in places:
            length = segment.end - segment.start
            place_N[segment.place : segment.place + length] = np.arange(done + first, done + first + length)
        blocks.append(_to(block, device))
        done += len(block.own_X)
    columns = (np.pad(forest.ids_N, (0, fill)), np.pad(forest.position_N, (0, fill)), place_N)
    ids_N, position_N, places_N = (torch.from_numpy(x).to(device, non_blocking=True) for x in columns)
    return Packed(ids_N, position_N, blocks, places_N)


def _families(segments: Sequence[Segment]) -> list[list[list[Segment]]]:
    """Segments with their siblings, in blocks of one depth and of lengths that differ by less than a factor of two."""
    siblings: dict[tuple[int, int], list[Segment]] = {}
    for i, segment in enumerate(segments):
        siblings.setdefault((id(segment.parent), 0) if segment.parent else (0, i), []).append(segment)
    blocks: dict[tuple[int, int], list[list[Segment]]] = {}
    for family in siblings.values():
        longest = max(s.end - s.start for s in family)
        blocks.setdefault((family[0].depth, longest.bit_length()), []).append(family)
    return list(blocks.values())


def _index(families: list[list[Segment]]) -> tuple[Block, list[tuple[Segment, int]]]:
    """The block of these families, on the CPU, and the first place of each segment in it."""
    children = max(map(len, families))
    length = max(s.end - s.start for family in families for s in family)
    own = np.zeros((len(families), children, length), np.int64)
    places = []
    for m, family in enumerate(families):
        for c, s in enumerate(family):
            own[m, c, : s.end - s.start] = np.arange(s.place, s.place + s.end - s.start)
            places.append((s, (m * children + c) * length))
    path = late = None
    if families[0][0].parent is not None:
        path, late = paths([family[0].parent.path for family in families if family[0].parent is not None])
    return Block(own.shape, torch.from_numpy(own.ravel()), path, late), places


def paths(walks: Sequence[Ids]) -> tuple[Tensor, Tensor | None]:
    """Paths as one tensor padded with 0 on the right, and True where it is padded (None if nowhere); on the CPU."""
    lengths_M = np.array([len(walk) for walk in walks])
    path_MP = np.zeros((len(walks), lengths_M.max()), np.int64)
    for m, walk in enumerate(walks):
        path_MP[m, : len(walk)] = walk
    late_MP = np.arange(path_MP.shape[1]) >= lengths_M[:, None]
    return torch.from_numpy(path_MP), torch.from_numpy(late_MP) if late_MP.any() else None


def _to(block: Block, device: torch.device) -> Block:
    own, path, late = (
        None if x is None else x.to(device, non_blocking=True) for x in (block.own_X, block.path_MP, block.late_MP)
    )
    assert own is not None
    return Block(block.shape, own, path, late)


def _flat(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[1, H, N, D] as [N, H * D]; float32 on the CPU, whose bfloat16 attention is no faster and less exact."""
    dtype = torch.float32 if x.device.type == "cpu" else dtype
    return x[0].transpose(0, 1).flatten(1).to(dtype)


def _take(x_ND: Tensor, index: Tensor) -> Tensor:
    """Rows by number. As an embedding, because its gradient adds up rows taken twice quickly on every device."""
    return functional.embedding(index, x_ND) if x_ND.requires_grad else x_ND[index]


def _block(
    block: Block, q_ND: Tensor, k_ND: Tensor, v_ND: Tensor, heads: tuple[int, int, int], scaling: float
) -> Tensor:
    """The attention of one block, [X, H * D]."""
    (parents, children, length), (queries, keys, size) = block.shape, heads
    walked = 0 if block.path_MP is None else block.path_MP.shape[1]
    q = _take(q_ND, block.own_X).view(parents, children, length, keys, queries // keys, size)
    k, v = (_take(x, block.own_X).view(parents, children, length, keys, size) for x in (k_ND, v_ND))
    kp, vp = (
        None if block.path_MP is None else _take(x, block.path_MP).view(parents, walked, keys, size) for x in (k_ND, v_ND)
    )
    exact = q_ND.device.type == "cpu" and walked + length <= LONG
    out = (_exact if exact else _fused)(q * scaling, (k, v), (kp, vp), block.late_MP)
    return out.reshape(-1, queries * size)


Pair = tuple[Tensor, Tensor]


def _exact(q: Tensor, own: Pair, path: tuple[Tensor | None, Tensor | None], late_MP: Tensor | None) -> Tensor:
    """Scores over a path once for all its children: for processors whose fused attention is slow. [M, C, L, K, R, D]."""
    parents, children, length, keys, ratio, size = q.shape
    q = q.permute(0, 3, 1, 4, 2, 5).contiguous()  # M K C R L D
    k, v = (x.permute(0, 3, 1, 2, 4) for x in own)  # M K C L D
    score = q.view(parents, keys, children, ratio * length, size) @ k.transpose(-1, -2)
    future_LL = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    score = score.view(*q.shape[:5], length).masked_fill(future_LL, -torch.inf)
    if path[0] is None or path[1] is None:
        out = score.softmax(-1).view(parents, keys, children, ratio * length, length) @ v
    else:
        kp, vp = (x.transpose(1, 2) for x in (path[0], path[1]))  # M K P D
        above = q.view(parents, keys, -1, size) @ kp.transpose(-1, -2)
        if late_MP is not None:
            above = above.masked_fill(late_MP[:, None, None], -torch.inf)
        paths = above.shape[-1]
        p = torch.cat((above.view(*q.shape[:5], paths), score), -1).softmax(-1)
        out = p[..., paths:].reshape(parents, keys, children, ratio * length, length) @ v
        out = out + (p[..., :paths].reshape(parents, keys, -1, paths) @ vp).view(out.shape)
    return out.view(q.shape).permute(0, 2, 4, 1, 3, 5)


def _fused(q: Tensor, own: Pair, path: tuple[Tensor | None, Tensor | None], late_MP: Tensor | None) -> Tensor:
    """Each child with a copy of its path's keys, through PyTorch's fused attention, which holds no scores."""
    parents, children, length, keys, ratio, size = q.shape
    q = q.permute(0, 1, 3, 4, 2, 5).reshape(parents * children, keys * ratio, length, size)
    both, mask = own, None
    if path[0] is not None and path[1] is not None:
        kp, vp = (x[:, None].expand(-1, children, -1, -1, -1) for x in (path[0], path[1]))
        both = (torch.cat((kp, own[0]), 2), torch.cat((vp, own[1]), 2))
        late_MP = late_MP if late_MP is not None else torch.zeros(path[0].shape[:2], dtype=torch.bool, device=q.device)
        mask = _mask(late_MP, children, length)
    k, v = (x.flatten(0, 1).transpose(1, 2).repeat_interleave(ratio, 1) for x in both)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=1.0)
    return out.view(parents, children, keys, ratio, length, size).permute(0, 1, 4, 2, 3, 5)


def _mask(late_MP: Tensor, children: int, length: int) -> Tensor:
    """True where a token may look: the real part of its path, and its own segment up to itself. [M * C, 1, L, P + L]."""
    past_LL = torch.ones(length, length, dtype=torch.bool, device=late_MP.device).tril()
    above = ~late_MP[:, None, None].expand(-1, children, length, -1)
    mask = torch.cat((above, past_LL.expand(*above.shape[:2], -1, -1)), -1)
    return mask.flatten(0, 1)[:, None]
