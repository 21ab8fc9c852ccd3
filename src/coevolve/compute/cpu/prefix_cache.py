"""The KV cache of a rollout where attention is a compiled loop.

Letters: B rows, E prompts, P tokens of the longest, T tokens of a row's own at most, S = 1 new token; H query heads, K
key heads, X = H + 2 K, D head dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.compute import prefix_cache
from coevolve.compute.cpu import loops
from coevolve.compute.cpu.arrays import either
from coevolve.compute.cpu.tree_attention import TreeAttention
from coevolve.compute.prefix_tree import PrefixTree


class PrefixCache(prefix_cache.PrefixCache):
    """Prompts lie as the rows' own tokens do, [E, K, P, 2 D], and are attended over with them."""

    def attend_heads(self, layer: int, heads_BXD: Any, cos_BD: Any, sin_BD: Any, scaling: float) -> Tensor:
        """One new token a row, of arrays: queries, keys and values side by side, still to be turned; [B, 1, H, D]."""
        seen = self.seen(layer, heads_BXD.dtype)
        rows, heads, size = heads_BXD.shape
        out_BSHD = np.empty((rows, 1, heads - 2 * seen[0].shape[1], size), np.float32)
        loops.attend(heads_BXD, cos_BD, sin_BD, *seen, self.filled, scaling, out_BSHD[:, 0])
        return torch.from_numpy(out_BSHD)

    def seen(self, layer: int, kind: Any) -> tuple[Any, ...]:
        """As the loops take them: prompts, their lengths, whose rows they are, and rows' own tokens, of this kind:
        reading these is what most of attention's time goes to. (Norms of heads leave theirs in float32.)"""
        if layer not in self.arrays:
            (prompt,) = self.prompt[layer]
            if layer not in self.own:
                _, keys, _, size = prompt.shape
                dtype = torch.bfloat16 if kind == np.uint16 else torch.float32
                own_BKTD = torch.empty((len(self.prompt_B), keys, self.steps, size), dtype=dtype)
                self.own[layer] = own_BKTD.transpose(1, 2)
            own_BKTD = self.own[layer].transpose(1, 2)
            self.arrays[layer] = prompt.numpy(), self.length_E, self.prompt_B, either(own_BKTD)
        return self.arrays[layer]

    def _pack(self, tree: PrefixTree) -> TreeAttention:
        return TreeAttention(tree)

    def _stored(self, key_EKPD: Tensor, value_EKPD: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat((key_EKPD, value_EKPD), -1).float(),)

    def _arrange(self) -> None:
        super()._arrange()
        self.arrays: dict[int, tuple[Any, ...]] = {}  # others when rows have left
        prompts = next(iter(self.prompt.values()))[0]
        late_EP = torch.zeros(prompts.shape[0], prompts.shape[2]) if self.late_EP is None else self.late_EP
        self.length_E = (late_EP == 0).sum(1).numpy()
