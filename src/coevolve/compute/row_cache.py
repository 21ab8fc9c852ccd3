"""The KV cache of a rollout for models that keep transformers' own attention: every row has its prompt's too.

Letters: B rows, U prompts, H heads, S positions (prompt padding, prompt, tokens to come), D head dimension, W hidden
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import LongTensor, Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from coevolve.models.adapters import Adapters
from coevolve.models.weights import trunk


class PreallocatedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A full-attention layer that writes into preallocated memory and hands out views of what is filled.

    Transformers' own DynamicLayer copies the whole cache at every token.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows_B: Tensor, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length, heads = int(keys.shape[2]), keys.shape[1]
        self._keys = keys.new_empty((len(rows_B), heads, self._length + capacity, keys.shape[3]))
        self._values = values.new_empty((len(rows_B), heads, self._length + capacity, values.shape[3]))
        self._keys[:, :, : self._length] = keys[rows_B]
        self._values[:, :, : self._length] = values[rows_B]
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._show()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of the next positions; returns the whole filled part."""
        start, self._length = self._length, self._length + int(key_states.shape[2])
        assert self._length <= self._keys.shape[2], "the cache was allocated too small"
        self._keys[:, :, start : self._length] = key_states
        self._values[:, :, start : self._length] = value_states
        return self._show()

    def keep(self, order_B: Tensor, holes: Tensor) -> None:
        """Drop all rows but ``order_B``, which differs from the identity only at ``holes``: only those are copied."""
        movers = order_B[holes]
        self._keys[holes, :, : self._length] = self._keys[movers, :, : self._length]
        self._values[holes, :, : self._length] = self._values[movers, :, : self._length]
        self._keys, self._values = self._keys[: len(order_B)], self._values[: len(order_B)]
        self._show()

    def _show(self) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[:, :, : self._length], self._values[:, :, : self._length]
        self.keys, self.values = keys, values
        return keys, values


class RowCache:
    """The keys and values of a rollout's rows, as ``prefix_cache``. mask_BS covers prompt and all tokens to come."""

    dead_share = 8

    def __init__(
        self,
        causal: Any,
        prompts: Sequence[Sequence[int]],
        speaker_U: Sequence[int],
        prompt_B: Sequence[int],
        steps: int,
        adapters: Adapters,
    ) -> None:
        self.causal, device = causal, causal.device
        row_B = torch.tensor(prompt_B, device=device)
        self.width = max(map(len, prompts))
        ids_US = torch.tensor([[0] * (self.width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        length_U = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask_US = torch.arange(self.width, device=device) >= (self.width - length_U)[:, None]
        adapters.split(np.repeat(speaker_U, self.width))
        found = trunk(causal)(
            input_ids=ids_US,
            attention_mask=mask_US.long(),
            position_ids=(mask_US.long().cumsum(-1) - 1).clamp(min=0),
            past_key_values=DynamicCache(config=causal.config),
            use_cache=True,
        )
        self.hidden_UW: Tensor = found.last_hidden_state[:, -1]
        self.mask_BS = torch.nn.functional.pad(mask_US.long(), (0, steps), value=1)[row_B]
        self.layers = repeat_rows(found.past_key_values, row_B, steps)
        self.filled = 0

    def step(self, ids_B: Tensor, position_B: Tensor) -> Tensor:
        """Feed one token a row; the last hidden states, [B, W]."""
        self.filled += 1
        found = trunk(self.causal)(
            input_ids=ids_B[:, None],
            attention_mask=self.mask_BS[:, : self.width + self.filled],
            position_ids=position_B[:, None],
            past_key_values=self.layers,
            use_cache=True,
        )
        hidden_BW: Tensor = found.last_hidden_state[:, -1]
        return hidden_BW

    def keep(self, order_B: Tensor, holes: Tensor) -> None:
        """Row b becomes what row ``order_B[b]`` was, and rows behind leave; ``holes`` are the b where the two
        differ."""
        self.mask_BS = self.mask_BS[order_B]
        for layer in self.layers.layers:
            if isinstance(layer, PreallocatedLayer):
                layer.keep(order_B, holes)
            else:
                layer.reorder_cache(cast(LongTensor, order_B))


def repeat_rows(cache: DynamicCache, rows_B: Tensor, capacity: int) -> DynamicCache:
    """The cache of a prefill, row ``rows_B[b]`` of it for each row b, with capacity for that many more tokens.

    Layers that are not plain full attention (sliding windows, recurrent states) keep transformers' own kind.
    """
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            assert layer.keys is not None and layer.values is not None
            cache.layers[i] = PreallocatedLayer(layer.keys, layer.values, rows_B, capacity)
        else:
            layer.reorder_cache(cast(LongTensor, rows_B))
    return cache
