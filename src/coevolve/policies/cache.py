"""The key-value cache of a rollout: room for every token is allocated once, and finished rows leave it.

Letters in the layers' tensors: B rows, H heads, S positions, D head dimension.
"""

from __future__ import annotations

from typing import Any, cast

from torch import LongTensor, Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A full-attention layer that writes into preallocated memory and hands out views of what is filled.

    Transformers' own DynamicLayer copies the whole cache at every token.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows_B: Tensor, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length, heads = int(keys.shape[2]), keys.shape[1]
        self._keys = keys.new_empty((len(rows_B), heads, self._length + room, keys.shape[3]))
        self._values = values.new_empty((len(rows_B), heads, self._length + room, values.shape[3]))
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


def spread(cache: DynamicCache, rows_B: Tensor, room: int) -> DynamicCache:
    """The cache of a prefill, row ``rows_B[b]`` of it for each row b, with room for that many more tokens.

    Layers that are not plain full attention (sliding windows, recurrent states) keep transformers' own kind.
    """
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            assert layer.keys is not None and layer.values is not None
            cache.layers[i] = RoomyLayer(layer.keys, layer.values, rows_B, room)
        else:
            layer.reorder_cache(cast(LongTensor, rows_B))
    return cache


def keep_rows(cache: DynamicCache, order_B: Tensor, holes: Tensor) -> None:
    """Compaction: row b becomes what row ``order_B[b]`` was; ``holes`` are the b where the two differ."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.keep(order_B, holes)
        else:
            layer.reorder_cache(cast(LongTensor, order_B))
