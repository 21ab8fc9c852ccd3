"""Packed weights: linear layers as the compiled product takes them (``loops.product``), for rollouts' few rows.

Letters: N rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coevolve.compute.cpu import loops
from coevolve.compute.cpu.arrays import array, buffer, either


def packed(weights_OI: Sequence[Tensor], dtype: torch.dtype) -> Any:
    """These weights in panels, outputs side by side, as one line."""
    wide, counts = loops.WIDTH, [len(weight) for weight in weights_OI]
    if any(count % wide for count in counts[:-1]):
        return packed([torch.cat(list(weights_OI))], dtype)
    panels_L, _ = buffer((-(-sum(counts) // wide) * wide * weights_OI[0].shape[1],), dtype)
    for weight_OI, first in zip(weights_OI, np.cumsum([0, *counts]), strict=False):
        loops.laid(array(weight_OI.contiguous()), first, panels_L)
    return panels_L


class Panels:
    """Layers that have the same input, as one product with a copy of their weights: outputs side by side, computed in
    dtype. out: of the outputs, dtype if it is not said."""

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype, out: torch.dtype | None = None) -> None:
        assert dtype == torch.float32 or layers[0].in_features % 2 == 0, "bfloat16 comes in pairs"
        self.dtype, self.out = dtype, out or dtype
        self.panels_L = packed([layer.weight.detach() for layer in layers], dtype)
        zeros = (np.zeros(len(layer.weight), np.float32) for layer in layers)
        # Rounded as updates round them where outputs are, or what is sampled would be scored otherwise.
        biases = (None if layer.bias is None else array(layer.bias.detach().to(self.out)) for layer in layers)
        self.bias_O = np.concatenate([zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)])

    def __call__(self, x: Tensor) -> Tensor:
        x_NI = either(x.to(self.dtype).contiguous()).reshape(-1, x.shape[-1])
        out_NO, out = buffer((len(x_NI), len(self.bias_O)), self.out)
        loops.product(x_NI, self.panels_L, self.bias_O, out_NO, False)
        return out.view(*x.shape[:-1], -1)
