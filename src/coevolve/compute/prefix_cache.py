"""The KV cache of a rollout: a prompt's keys and values once for all rows that continue it, each row's own in memory
made beforehand.

A new token attends over its prompt together with all other rows of that prompt, over its own row alone, and the two
are put together by their log-sum-exp: the same sum in another order. Letters: B rows, U prompts, G most rows of a
prompt, P tokens of the longest prompt, T new tokens, N packed prompt tokens; H query heads, K key heads, R = H / K, D
head dimension, W hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.compute import kernels
from coevolve.compute import partial_attention as partial
from coevolve.compute.attention import TreeAttention
from coevolve.compute.cuda_graph import Recorded
from coevolve.compute.packed_tokens import pack, places
from coevolve.compute.prefix_tree import Ids, PrefixTree, grow
from coevolve.models.adapters import Adapters

Forward = Callable[[Tensor, Tensor, Any], Tensor]
"""(ids_BS, position_BS, attention) -> last hidden states [B, S, W]: the model below its head, without gradient."""


class _Prefill:
    """Attention over packed prompts that keeps every layer's keys and values, [N, K, D]."""

    def __init__(self, packed: TreeAttention) -> None:
        self.packed = packed
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        if layer in self.kept:
            raise NotImplementedError("layers that attend twice")
        # Contiguous, because they may be views into all heads' queries, which nobody needs any more.
        self.kept[layer] = (key[0].transpose(0, 1).contiguous(), value[0].transpose(0, 1).contiguous())
        return self.packed.attend(layer, query, key, value, scaling)


class PrefixCache:
    """The keys and values of a rollout's rows. prompt_B: the number of each row's prompt. steps: new tokens at most.

    speaker_U: whose each prompt is, as a number of ``adapters``; prompts of one come together. static: shapes stay the
    same while rows do, as a CUDA graph needs: on a GPU a token's step is recorded, and again when rows leave.
    """

    recorded: Recorded | None = None
    late_1T: Tensor

    def __init__(
        self,
        forward: Forward,
        prompts: Sequence[Sequence[int]],
        speaker_U: Sequence[int],
        prompt_B: Sequence[int],
        steps: int,
        adapters: Adapters,
        static: bool,
    ) -> None:
        self.forward, self.device, self.steps, self.filled = forward, adapters.device, steps, 0
        self.static, self.recording = static, self.device.type == "cuda"
        self.dead_share = 2 if self.recording else 8
        self.prompt_B, prompt_E = _even(np.array(prompt_B))
        self.grid = (len(prompt_E), 0)
        tree = grow([np.array(prompt) for prompt in prompts], speaker_U)
        packed = self._pack(tree)
        # Tokens that fill up are anybody's.
        adapters.split(np.pad(tree.kind_N, (0, len(packed.ids_N) - len(tree.kind_N)), "edge"))
        prefill = _Prefill(packed)
        hidden_1NW = forward(packed.ids_N[None], packed.position_N[None], prefill)
        last_U = torch.tensor([int(leaf.path[-1]) for leaf in tree.leaf_B], device=self.device)
        self.hidden_UW = hidden_1NW[0, last_U]
        walked = places([tree.leaf_B[u].path for u in prompt_E], 0, self.device)
        self.prompt: dict[int, tuple[Tensor, ...]] = {
            layer: self._stored(walked.take(key), walked.take(value)) for layer, (key, value) in prefill.kept.items()
        }
        self.late_EP = walked.late_ML
        self.own: dict[int, Tensor] = {}
        self.filled_1 = torch.zeros(1, dtype=torch.long, device=self.device)
        self._arrange()

    def step(self, ids_B: Tensor, position_B: Tensor) -> Tensor:
        """Feed one token a row; the last hidden states, [B, W]."""
        if self.recording and self.recorded is None:
            self.recorded = Recorded(self._token, ids_B, position_B)
        hidden_BW = (self.recorded or self._token)(ids_B, position_B)
        self.filled += 1
        self.filled_1 += 1
        return hidden_BW

    def _token(self, ids_B: Tensor, position_B: Tensor) -> Tensor:
        if self.static:
            self.late_1T = torch.arange(self.steps, device=self.device)[None] > self.filled_1
        return self.forward(ids_B[:, None], position_B[:, None], self)[:, 0]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One new token a row: [B, H, 1, D] and twice [B, K, 1, D] to [B, 1, H, D]."""
        keys, values = self._store(layer, key, value)
        q = query.to(keys.dtype)
        above, above_lse = self._prompt(layer, q, scaling)
        late_BT = self.late_1T.expand(len(keys), -1) if self.static else None
        own, own_lse = partial.forward(q, keys, values, late_BT, False, scaling)
        share = torch.sigmoid(above_lse - own_lse).unsqueeze(-1).to(own.dtype)  # of the prompt: e^a / (e^a + e^b)
        return torch.lerp(own, above, share).transpose(1, 2).to(query.dtype)

    def keep(self, order_B: Tensor, holes: Tensor) -> None:
        """Row b becomes what row ``order_B[b]`` was, and rows behind leave; ``holes`` are the b where the two
        differ."""
        self.recorded = None
        self.prompt_B = self.prompt_B[order_B.cpu().numpy()]
        movers = order_B[holes]
        for layer, own in self.own.items():
            own[holes, : self.filled] = own[movers, : self.filled]
            self.own[layer] = own[: len(order_B)]
        self._arrange()

    def _pack(self, tree: PrefixTree) -> TreeAttention:
        return pack(tree, self.device)

    def _store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new token's key and value; returns all of the row's own so far, [B, K, t, D] (static: all T).

        They lie as [B, T, K, 2 D], a row in one piece and a head's key beside its value: short runs with gaps between
        them are read from memory at a third of its rate.
        """
        keys = self.prompt[layer][0]
        new = torch.cat((key[:, :, 0], value[:, :, 0]), -1).to(keys.dtype)
        if layer not in self.own:
            made = torch.zeros if self.static else torch.empty  # static, late places count, if only as nothing
            self.own[layer] = made((len(new), self.steps, *new.shape[1:]), dtype=new.dtype, device=new.device)
        own = self.own[layer]
        if self.static:
            own.index_copy_(1, self.filled_1, new[:, None])
        else:
            own[:, self.filled] = new
            own = own[:, : self.filled + 1]
        own = own.transpose(1, 2)
        return own[..., : keys.shape[-1]], own[..., keys.shape[-1] :]

    def _stored(self, key_EKPD: Tensor, value_EKPD: Tensor) -> tuple[Tensor, ...]:
        """A prompt as the rollout reads it: contiguous."""
        both = (key_EKPD, value_EKPD)
        return tuple((x.float() if kernels.wide(self.device) else x).contiguous() for x in both)

    def _arrange(self) -> None:
        """Which rows stand together under which prompt: rows as places of a grid E x G. Prompts of nobody leave."""
        alive, number_B, counts = np.unique(self.prompt_B, return_inverse=True, return_counts=True)
        if len(alive) < self.grid[0]:
            alive_E = torch.from_numpy(alive).to(self.device)
            self.prompt = {layer: tuple(x[alive_E] for x in stored) for layer, stored in self.prompt.items()}
            self.late_EP = None if self.late_EP is None else self.late_EP[alive_E]
        self.prompt_B = number_B
        self.grid = (len(counts), int(counts.max()))
        place_B = number_B * self.grid[1] + _rank(number_B)
        row_X = np.zeros(self.grid[0] * self.grid[1], np.int64)
        row_X[place_B] = np.arange(len(place_B))
        in_place = len(place_B) == len(row_X) and bool((place_B == np.arange(len(place_B))).all())
        self.places = None if in_place else tuple(torch.from_numpy(x).to(self.device) for x in (place_B, row_X))

    def _prompt(self, layer: int, q: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention over the rows' prompts, [B, H, 1, D], and its log-sum-exp, [B, H, 1]."""
        placed = (q if self.places is None else q[self.places[1]])[:, :, 0]
        placed = torch.unflatten(placed, 0, self.grid).transpose(1, 2)
        keys, values = self.prompt[layer]
        out, lse = partial.forward(placed, keys, values, self.late_EP, False, scaling)
        out, lse = (x.transpose(1, 2).flatten(0, 1).unsqueeze(2) for x in (out, lse))
        return (out, lse) if self.places is None else (out[self.places[0]], lse[self.places[0]])


def _even(prompt_B: Ids) -> tuple[Ids, Ids]:
    """Rows in groups of at most the mean size, large ones cut; each row's group, and each group's prompt.

    The grid of groups is then at most about twice the rows, however unevenly these are spread over prompts.
    """
    size = -(-len(prompt_B) // len(np.unique(prompt_B)))
    groups, group_B = np.unique(np.stack((prompt_B, _rank(prompt_B) // size)), axis=1, return_inverse=True)
    return group_B.ravel(), groups[0]


def _rank(number_B: Ids) -> Ids:
    """How many rows before it have the same number."""
    rank_B = np.empty(len(number_B), np.int64)
    for number in np.unique(number_B):
        rank_B[number_B == number] = np.arange((number_B == number).sum())
    return rank_B
