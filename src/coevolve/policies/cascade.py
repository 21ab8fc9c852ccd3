"""The keys and values of a rollout: a prompt's once for all rows that continue it, each row's own in room made beforehand.

A new token attends over its prompt together with all other rows of that prompt, over its own row alone, and the two are put
together by their log-sum-exp: the same sum in another order. Letters: B rows, U prompts, G most rows of a prompt, P tokens of
the longest prompt, T new tokens, N packed prompt tokens; H query heads, K key heads, R = H / K, D head dimension, W hidden
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.policies.attention import no_mask
from coevolve.policies.forest import grow
from coevolve.policies.packed import Packed, pack, paths
from coevolve.policies.weights import trunk


class _Prefill:
    """Attention over packed prompts that keeps every layer's keys and values, [N, K, D]."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.kept[layer] = (key[0].transpose(0, 1), value[0].transpose(0, 1))
        return self.packed.attend(layer, query, key, value, scaling)


class Cascade:
    """What the rows of a rollout remember. prompt_B: the number of each row's prompt. steps: new tokens at most."""

    def __init__(self, causal: Any, prompts: Sequence[Sequence[int]], prompt_B: Sequence[int], steps: int) -> None:
        self.causal, self.device, self.steps, self.filled = causal, causal.device, steps, 0
        self.prompt_B = np.array(prompt_B)
        forest = grow([np.array(prompt) for prompt in prompts])
        packed = pack(forest, self.device)
        prefill = _Prefill(packed)
        hidden_1NW = self._forward(packed.ids_N[None], packed.position_N[None], prefill)
        last_U = torch.tensor([int(leaf.path[-1]) for leaf in forest.leaf_B], device=self.device)
        self.hidden_UW = hidden_1NW[0, last_U]
        path_UP, late_UP = paths([leaf.path for leaf in forest.leaf_B])
        path_UP = path_UP.to(self.device)
        self.prompt: dict[int, tuple[Tensor, Tensor]] = {
            layer: (_stored(key[path_UP]), _stored(value[path_UP])) for layer, (key, value) in prefill.kept.items()
        }
        self.hide_UP = None if late_UP is None else torch.zeros(late_UP.shape).masked_fill(late_UP, -torch.inf)
        if self.hide_UP is not None:
            self.hide_UP = self.hide_UP.to(self.device)[:, None, None]
        self.own: dict[int, tuple[Tensor, Tensor]] = {}
        self._arrange()

    def step(self, ids_B: Tensor, position_B: Tensor) -> Tensor:
        """Feed one token a row; the last hidden states, [B, W]."""
        hidden_B1W = self._forward(ids_B[:, None], position_B[:, None], self)
        self.filled += 1
        return hidden_B1W[:, 0]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One new token a row: [B, H, 1, D] and twice [B, K, 1, D] to [B, 1, H, D]."""
        (rows, heads, _, size), dtype = query.shape, query.dtype
        keys, values = self._store(layer, key, value)
        with torch.autocast(query.device.type, enabled=False):
            q = (query[:, :, 0] * scaling).to(keys.dtype).view(rows, key.shape[1], -1, size)
            above, above_lse = self._prompt(layer, q)
            own, own_lse = partial(q, keys, values, None)
            weight = torch.sigmoid(above_lse - own_lse).unsqueeze(-1).to(own.dtype)  # of the prompt: e^a / (e^a + e^b)
            out = torch.lerp(own, above, weight)
        return out.reshape(rows, 1, heads, size).to(dtype)

    def keep(self, order_B: Tensor, holes: Tensor) -> None:
        """Row b becomes what row ``order_B[b]`` was, and rows behind leave; ``holes`` are the b where the two differ."""
        self.prompt_B = self.prompt_B[order_B.cpu().numpy()]
        movers = order_B[holes]
        for layer, pair in self.own.items():
            for x in pair:
                x[holes, :, : self.filled] = x[movers, :, : self.filled]
            self.own[layer] = (pair[0][: len(order_B)], pair[1][: len(order_B)])
        self._arrange()

    def _forward(self, ids: Tensor, positions: Tensor, sharing: Any) -> Tensor:
        found: Tensor = trunk(self.causal)(
            input_ids=ids,
            position_ids=positions,
            attention_mask=no_mask(self.device),
            use_cache=False,
            sharing=sharing,
        ).last_hidden_state
        return found

    def _store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new token's key and value; returns all of the row's own so far, [B, K, t, D]."""
        if layer not in self.own:
            like = self.prompt[layer]
            shape = (len(self.prompt_B), like[0].shape[1], self.steps)
            self.own[layer] = (
                like[0].new_empty((*shape, like[0].shape[3])),
                like[1].new_empty((*shape, like[1].shape[3])),
            )
        keys, values = self.own[layer]
        keys[:, :, self.filled] = key[:, :, 0]
        values[:, :, self.filled] = value[:, :, 0]
        return keys[:, :, : self.filled + 1], values[:, :, : self.filled + 1]

    def _arrange(self) -> None:
        """Which rows stand together under which prompt: rows as places of a grid U x G. Prompts of nobody leave."""
        alive, number_B = np.unique(self.prompt_B, return_inverse=True)
        if len(alive) < len(self.hidden_UW):
            alive_U = torch.from_numpy(alive).to(self.device)
            self.hidden_UW = self.hidden_UW[alive_U]
            self.prompt = {layer: (k[alive_U], v[alive_U]) for layer, (k, v) in self.prompt.items()}
            self.hide_UP = None if self.hide_UP is None else self.hide_UP[alive_U]
        self.prompt_B = number_B
        counts = np.bincount(number_B)
        self.grid = (len(counts), int(counts.max()))
        rank_B = np.empty(len(number_B), np.int64)
        for u in range(len(counts)):
            rank_B[number_B == u] = np.arange(counts[u])
        place_B = number_B * self.grid[1] + rank_B
        row_X = np.zeros(self.grid[0] * self.grid[1], np.int64)
        row_X[place_B] = np.arange(len(place_B))
        in_place = len(place_B) == len(row_X) and bool((place_B == np.arange(len(place_B))).all())
        self.places = None if in_place else tuple(torch.from_numpy(x).to(self.device) for x in (place_B, row_X))

    def _prompt(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Attention over the rows' prompts, [B, K, R, D], and its log-sum-exp, [B, K, R]."""
        keys, values = self.prompt[layer]
        (prompts, group), (rows, heads, ratio, size) = self.grid, q.shape
        placed = q if self.places is None else q[self.places[1]]
        folded = placed.view(prompts, group, heads, ratio, size).transpose(1, 2).reshape(prompts, heads, -1, size)
        out, lse = partial(folded, keys, values, self.hide_UP)
        out = out.view(prompts, heads, group, ratio, -1).transpose(1, 2).reshape(-1, heads, ratio, values.shape[3])
        lse = lse.view(prompts, heads, group, ratio).transpose(1, 2).reshape(-1, heads, ratio)
        return (out, lse) if self.places is None else (out[self.places[0]], lse[self.places[0]])


def partial(q: Tensor, k: Tensor, v: Tensor, hide: Tensor | None) -> tuple[Tensor, Tensor]:
    """softmax(q k' + hide) v and the log of the sum of exponentials it was divided by; q is scaled already."""
    if q.device.type == "cpu" and q.shape[-1] == v.shape[-1]:
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        bias = None if hide is None else hide.expand(len(q), 1, q.shape[2], -1)
        out, lse = fused(q, k, v, attn_mask=bias, scale=1.0)
        return out, lse
    score = q @ k.transpose(-1, -2)
    score = score.float() if hide is None else score.float() + hide
    lse = score.logsumexp(-1)
    return (score - lse.unsqueeze(-1)).exp().to(v.dtype) @ v, lse


def _stored(x_UPKD: Tensor) -> Tensor:
    """As [U, K, P, D]; float32 on the CPU, whose bfloat16 attention is slower."""
    x = x_UPKD.transpose(1, 2)
    return (x.float() if x.device.type == "cpu" else x).contiguous()
