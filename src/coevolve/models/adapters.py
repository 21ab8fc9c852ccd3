"""LoRA adapters side by side: one forward of a shared base, in which every run of rows has its own policy's adapter.

PEFT computes one adapter at a time; its mixed batches go through the adapters in a loop and cannot be trained. Here
the adapters of a layer are stacked, and two batched products add to the base's output what each run's own adapter adds.
One adapter for all rows is the same with one run. Letters: N rows of a layer's input, I inputs, O outputs, M runs of
rows, L rows of the longest, X = M L, R the largest rank.
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
    """Adapters that compute together; rows are in the order of ``names`` (None: the bare base).

    All rows are of the first one until ``split`` says otherwise. present: whose rows there are, as numbers of names.
    """

    def __init__(self, names: Sequence[str | None], device: torch.device) -> None:
        self.names, self.device = list(names), device
        self._stacks: dict[tuple[int, ...], Stack | None] = {}
        self.present = [0]
        self._places: Stack | None = None
        self._seen: tuple[Tensor, Tensor] | None = None

    @property
    def bare(self) -> bool:
        """Whether nobody has an adapter."""
        return all(name is None for name in self.names)

    def split(self, speaker_N: ArrayLike) -> None:
        """Whose each row of every layer's input is from now on, as the number of a name; non-decreasing."""
        present_M, count_M = np.unique(speaker_N, return_counts=True)
        if present_M.tolist() != self.present:
            self.present, self._stacks = present_M.tolist(), {}
        self._seen = None
        self._places = None if (count_M == count_M[0]).all() else self._grid(count_M)

    def _grid(self, count_M: Any) -> Stack:
        """Runs of different lengths as a grid M x L: the row at each place, and the place of each row."""
        run_N = np.repeat(np.arange(len(count_M)), count_M)
        start_M = np.cumsum(count_M) - count_M
        place_N = run_N * count_M.max() + np.arange(len(run_N)) - start_M[run_N]
        row_X = np.zeros(len(count_M) * count_M.max(), np.int64)  # where a run is over, row 0 fills up
        row_X[place_N] = np.arange(len(run_N))
        return torch.from_numpy(row_X).to(self.device), torch.from_numpy(place_N).to(self.device)

    def add(self, layers: Sequence[Any], x: Tensor, y: Tensor) -> Tensor:
        """y, what layers without adapters make of x, side by side, and what each row's adapter adds to it."""
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
        """A layer's input by runs, [M, L, I]. Several layers have the same: that of queries, keys and values is one."""
        if self._seen is None or self._seen[0] is not x or self._seen[1].dtype != dtype:
            x_NI = x.to(dtype).flatten(0, -2)
            x_XI = x_NI if self._places is None else x_NI.index_select(0, self._places[0])
            self._seen = x, x_XI.view(len(self.present), -1, x.shape[-1])
        return self._seen[1]

    def _plus(self, y: Tensor, x_MLR: Tensor, up_MRO: Tensor) -> Tensor:
        """y + x A' B'; into y where runs are of one length and no gradient needs it."""
        count, width = len(x_MLR), y.shape[-1]
        if self._places is not None:  # in the grid too, so that bfloat16 is rounded once, as with one run
            y_MLO = y.flatten(0, -2).index_select(0, self._places[0]).view(count, -1, width)
            added_XO = torch.baddbmm(y_MLO, x_MLR, up_MRO).flatten(0, 1)
            return added_XO.index_select(0, self._places[1]).view(y.shape)
        y_MLO = y.reshape(count, -1, width)
        return (y_MLO.baddbmm if torch.is_grad_enabled() else y_MLO.baddbmm_)(x_MLR, up_MRO).view(y.shape)

    def _stack(self, layers: Sequence[Any], dtype: torch.dtype, wide: torch.dtype) -> Stack | None:
        """All runs' adapters on these layers: A' [M, I, R], B' with its scale [M, R, O], rounded to dtype and given in
        wide. None if no run has one."""
        if torch.is_grad_enabled():
            return self._stacked(layers, dtype, wide)  # a gradient goes through it
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
    """One adapter's A [R, I] and scaled B [O, R] on layers of the same input: their A beside each other, their B as
    blocks of one matrix. R is 0 where it has none."""
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
    """The layers that PEFT has put adapters on."""
    return [module for module in causal.modules() if hasattr(module, "lora_A") and hasattr(module, "base_layer")]
