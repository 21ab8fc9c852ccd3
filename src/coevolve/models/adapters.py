"""Several LoRA adapters in one forward of a shared base, in which every run of rows uses its own policy's adapter.

PEFT computes one adapter at a time; its mixed batches go through the adapters in a loop and cannot be trained. Here
the adapters of a layer are stacked, and two batched products add each run's adapter to the base's output. One adapter
for all rows is the case of one run. Letters: N rows of a layer's input, I inputs, O outputs, M runs of rows, L rows of
the longest, X = M L, R the largest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import pad

from coevolve.runtime.processor import multiplied_in

Stack = tuple[Tensor, Tensor]


class Adapters:
    """The adapters used in one forward; rows are in the order of ``names`` (None: the bare base).

    All rows belong to the first name until ``split`` is called. present: the numbers of the names that have rows.
    """

    def __init__(self, names: Sequence[str | None], device: torch.device) -> None:
        self.names, self.device = list(names), device
        self._stacks: dict[tuple[int, ...], Stack | None] = {}
        self.present = [0]
        self._places: Stack | None = None
        self._seen: tuple[Tensor, Tensor] | None = None

    @property
    def bare(self) -> bool:
        """Whether none of the names is an adapter."""
        return all(name is None for name in self.names)

    def split(self, speaker_N: ArrayLike) -> None:
        """Set the name, by its number, that each row of every layer's input belongs to; numbers are non-decreasing."""
        present_M, count_M = np.unique(speaker_N, return_counts=True)
        if present_M.tolist() != self.present:
            self.present, self._stacks = present_M.tolist(), {}
        self._seen = None
        self._places = None if (count_M == count_M[0]).all() else self._grid(count_M)

    def _grid(self, count_M: Any) -> Stack:
        """Return runs of different lengths as a grid M x L: the row at each place, and the place of each row."""
        run_N = np.repeat(np.arange(len(count_M)), count_M)
        start_M = np.cumsum(count_M) - count_M
        place_N = run_N * count_M.max() + np.arange(len(run_N)) - start_M[run_N]
        row_X = np.zeros(len(count_M) * count_M.max(), np.int64)  # row 0 pads runs that are shorter
        row_X[place_N] = np.arange(len(run_N))
        return torch.from_numpy(row_X).to(self.device), torch.from_numpy(place_N).to(self.device)

    def add(self, layers: Sequence[Any], x: Tensor, y: Tensor) -> Tensor:
        """Return y, the outputs of layers without adapters for x, side by side, plus what each row's adapter adds."""
        wide = multiplied_in(y.dtype, y.device, y.numel() // y.shape[-1], kept=not torch.is_grad_enabled())
        stack = self._stack(layers, y.dtype, wide)
        if stack is None:
            return y
        if wide != y.dtype:
            with torch.autocast(y.device.type, enabled=False):
                x_MLR = torch.bmm(self._runs(x, y.dtype).to(wide), stack[0]).to(y.dtype)
                return self._plus(y.to(wide), x_MLR.to(wide), stack[1]).to(y.dtype)
        if y.dtype == torch.float32 and torch.is_autocast_enabled(y.device.type):  # a base in 4 bits
            with torch.autocast(y.device.type, enabled=False):
                return self._plus(y, torch.bmm(self._runs(x, y.dtype), stack[0]), stack[1])
        return self._plus(y, torch.bmm(self._runs(x, y.dtype), stack[0]), stack[1])

    def _runs(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a layer's input by runs, [M, L, I]; kept, since queries, keys and values have the same input."""
        if self._seen is None or self._seen[0] is not x or self._seen[1].dtype != dtype:
            x_NI = x.to(dtype).flatten(0, -2)
            x_XI = x_NI if self._places is None else x_NI.index_select(0, self._places[0])
            self._seen = x, x_XI.view(len(self.present), -1, x.shape[-1])
        return self._seen[1]

    def _plus(self, y: Tensor, x_MLR: Tensor, up_MRO: Tensor) -> Tensor:
        """Return y + x A' B'; written into y if runs have equal lengths and there is no gradient."""
        count, width = len(x_MLR), y.shape[-1]
        if self._places is not None:  # y in the grid too: bfloat16 is rounded once, as with one run
            y_MLO = y.flatten(0, -2).index_select(0, self._places[0]).view(count, -1, width)
            added_XO = torch.baddbmm(y_MLO, x_MLR, up_MRO).flatten(0, 1)
            return added_XO.index_select(0, self._places[1]).view(y.shape)
        y_MLO = y.reshape(count, -1, width)
        return (y_MLO.baddbmm if torch.is_grad_enabled() else y_MLO.baddbmm_)(x_MLR, up_MRO).view(y.shape)

    def _stack(self, layers: Sequence[Any], dtype: torch.dtype, wide: torch.dtype) -> Stack | None:
        """Return all runs' adapters on these layers: A' [M, I, R], B' with its scale [M, R, O], rounded to dtype and
        stored as wide. None if no run has an adapter."""
        if torch.is_grad_enabled():
            return self._stacked(layers, dtype, wide)  # not kept: the backward needs a fresh graph
        key = tuple(map(id, layers))
        if key not in self._stacks or ((kept := self._stacks[key]) is not None and kept[0].dtype != wide):
            self._stacks[key] = self._stacked(layers, dtype, wide)
        return self._stacks[key]

    def _stacked(self, layers: Sequence[Any], dtype: torch.dtype, wide: torch.dtype) -> Stack | None:
        both = [_joined(self.names[i], layers) for i in self.present]
        rank = max(len(down_RI) for down_RI, _ in both)
        if not rank:
            return None
        downs = [pad(down_RI, (0, 0, 0, rank - len(down_RI))).to(dtype).to(wide) for down_RI, _ in both]
        ups = [pad(up_OR, (0, rank - up_OR.shape[1])).to(dtype).to(wide) for _, up_OR in both]
        # As transposed views, because PyTorch's batched product for CPUs is up to twice as fast with them.
        down_MRI, up_MOR = ((x[0][None] if len(x) == 1 else torch.stack(x)) for x in (downs, ups))
        return down_MRI.transpose(1, 2), up_MOR.transpose(1, 2)


def _joined(name: str | None, layers: Sequence[Any]) -> Stack:
    """Return one adapter's A [R, I] and scaled B [O, R] on layers of the same input: their A concatenated, their B as
    diagonal blocks of one matrix. R is 0 if the layers have no such adapter."""
    downs, ups = [], []
    for layer in layers:
        weight = getattr(layer, "base_layer", layer).weight
        if name is not None and name in getattr(layer, "lora_A", ()):
            downs.append(layer.lora_A[name].weight)
            ups.append(layer.lora_B[name].weight * layer.scaling[name])
        else:
            downs.append(weight.new_zeros((0, layer.in_features)))
            ups.append(weight.new_zeros((layer.out_features, 0)))
    return (downs[0], ups[0]) if len(layers) == 1 else (torch.cat(downs), torch.block_diag(*ups))  # type: ignore[no-untyped-call]


def lora_layers(causal: nn.Module) -> list[Any]:
    """Return the layers that PEFT has put adapters on."""
    return [module for module in causal.modules() if hasattr(module, "lora_A") and hasattr(module, "base_layer")]
