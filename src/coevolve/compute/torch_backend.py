"""The backend of PyTorch and transformers' own modules, on any device.

Updates use prefix trees where the model's attention allows; rollouts use transformers' attention, with its KV cache in
preallocated memory.

Letters: B rows, U prompts, S positions (of a rollout: prompt padding, prompt, tokens to come), N the action tokens of
all rows in one line, X packed tokens that are wanted, H heads, D head dimension, W hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import LongTensor, Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from coevolve.compute.attention import Attention, FlashAttention, PathAttention, no_mask
from coevolve.compute.forward import packed_actions
from coevolve.compute.logprobs import action_logps, lm_head
from coevolve.interfaces import LMHead, Reference, Sampler
from coevolve.models.adapters import Adapters
from coevolve.models.weights import Base, head, trunk
from coevolve.types import Batch


@dataclass(frozen=True)
class TorchBackend:
    """Forwards and backwards by PyTorch, on whatever device the weights are.

    uses_prefix_tree: whether the prefix-tree attention gives the model's own results (``backend``). why_not: why the
    compiled loops of the CPU were not chosen, empty if they were not considered. why_not_flash: the same of
    FlashAttention; None if it is used, in 16 bits.
    """

    base: Base
    uses_prefix_tree: bool
    why_not: str = ""
    why_not_flash: str | None = ""
    name: str = "torch"

    @property
    def about(self) -> str:
        """One line: the kind of attention, and why the compiled loops are not used."""
        kind = "prefix tree" if self.uses_prefix_tree else "rows apart (attention of the model's own kind)"
        kind += ", FlashAttention in 16 bits" * (self.why_not_flash is None)
        others = {"cpu": self.why_not, "FlashAttention": self.why_not_flash}
        return "; ".join([f"torch, {kind}", *(f"not {other}: {why}" for other, why in others.items() if why)])

    def sampler(self, adapters: Adapters, dtype: torch.dtype) -> Sampler:
        """Return a sampler by transformers' modules, which feeds every distinct prompt once."""
        return Sampler(partial(RowCache, self.base.causal, adapters), self.lm_head(dtype))

    def hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states that predict the action tokens, [N, W], on the model's device. Autocast's cache of
        rounded weights is off: each is used once, and keeping them would undo part of what checkpointing saves."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            return self._packed(batch) if self.uses_prefix_tree else self._padded(batch)
        finally:
            torch.set_autocast_cache_enabled(cached)

    def logprobs(
        self, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor, reference: Reference | None = None
    ) -> tuple[Tensor, ...]:
        """Return log-probabilities and entropies, and KLs with a reference, [N] each (``logprobs.action_logps``)."""
        return action_logps(head(self.base.causal), hidden_NW, action_N, temperature_N, reference=reference)

    def lm_head(self, dtype: torch.dtype) -> LMHead:
        """Return ``logprobs.lm_head`` of the model's head."""
        return lm_head(head(self.base.causal), dtype)

    def _packed(self, batch: Batch) -> Tensor:
        tree, where_N = packed_actions(batch)
        device = self.base.causal.device
        flash = self.why_not_flash is None and torch.is_autocast_enabled(device.type)
        attention = (FlashAttention if flash else PathAttention)(tree, device)
        return tree_hidden(self.base.causal, attention, where_N.to(device))

    def _padded(self, batch: Batch) -> Tensor:
        """Feed rows padded on the right, so that causal attention never sees padding and no mask is needed."""
        ids_BS, device = batch.ids_BS[:, :-1], self.base.causal.device
        row_N, t_N = batch.mask_BT.nonzero(as_tuple=True)
        where_N = row_N * ids_BS.shape[1] + batch.start_B[row_N] - 1 + t_N
        ids_BS = ids_BS.to(device)
        # Without a mask, some models derive one from padding ids; one of ones marks all tokens as real.
        found: Any = trunk(self.base.causal)(input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS), use_cache=False)
        hidden_NW: Tensor = found.last_hidden_state.flatten(0, 1)
        chosen_NW: Tensor = hidden_NW[where_N.to(device)]
        return chosen_NW


def tree_hidden(causal: Any, tree: Attention, where_X: Tensor) -> Tensor:
    """Return the last hidden states of packed tokens ``where_X``, [X, W], by transformers' modules with this
    attention."""
    found: Any = trunk(causal)(
        input_ids=tree.ids_N[None],
        position_ids=tree.position_N[None],
        attention_mask=no_mask(where_X.device),
        use_cache=False,
        tree_attention=tree,
    )
    return torch.nn.functional.embedding(where_X, found.last_hidden_state[0])


class PreallocatedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A full-attention cache layer that writes into preallocated memory and returns views of the filled part.

    Transformers' own DynamicLayer copies the whole cache at every token. Under autocast the cache has autocast's dtype,
    to which attention rounds keys and values in any case, and not the float32 of rotated keys.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows_B: Tensor, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length, heads = int(keys.shape[2]), keys.shape[1]
        kind = keys.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else keys.dtype
        self._keys = keys.new_empty((len(rows_B), heads, self._length + capacity, keys.shape[3]), dtype=dtype)
        self._values = values.new_empty((len(rows_B), heads, self._length + capacity, values.shape[3]), dtype=dtype)
        self._keys[:, :, : self._length] = keys[rows_B]
        self._values[:, :, : self._length] = values[rows_B]
        self.dtype, self.device, self.is_initialized = dtype, keys.device, True
        self._show()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of the next positions and return the whole filled part."""
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
    """The ``KVCache`` of a rollout, by rows. mask_BS covers the prompt and all tokens to come."""

    dead_share = 8

    def __init__(
        self,
        causal: Any,
        adapters: Adapters,
        prompts: Sequence[Sequence[int]],
        speaker_U: Sequence[int],
        prompt_B: Sequence[int],
        steps: int,
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
        """Feed one token per row and return the last hidden states, [B, W]."""
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
        """Replace each row b by row ``order_B[b]``, and drop the rows after the last; ``holes`` are the b where the two
        differ."""
        self.mask_BS = self.mask_BS[order_B]
        for layer in self.layers.layers:
            if isinstance(layer, PreallocatedLayer):
                layer.keep(order_B, holes)
            else:
                layer.reorder_cache(cast(LongTensor, order_B))


def repeat_rows(cache: DynamicCache, rows_B: Tensor, capacity: int) -> DynamicCache:
    """Return a prefill's cache with row ``rows_B[b]`` of it as row b, with room for ``capacity`` more tokens.

    Layers that are not plain full attention (sliding windows, recurrent states) keep transformers' own kind.
    """
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            assert layer.keys is not None and layer.values is not None
            cache.layers[i] = PreallocatedLayer(layer.keys, layer.values, rows_B, capacity)
        else:
            layer.reorder_cache(cast(LongTensor, rows_B))
    return cache
