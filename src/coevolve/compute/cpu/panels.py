"""Linear layers as the compiled product takes them (``compiled.product``). Letters: N rows, I inputs, O outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coevolve.compute.cpu.arrays import array, either, room


def laid(weights_OI: Sequence[Tensor], dtype: torch.dtype, compiled: Any) -> Any:
    """These weights in panels, outputs side by side, as one line."""
    wide, counts = compiled.WIDTH, [len(weight) for weight in weights_OI]
    if any(count % wide for count in counts[:-1]):
        return laid([torch.cat(list(weights_OI))], dtype, compiled)
    panels_L, _ = room((-(-sum(counts) // wide) * wide * weights_OI[0].shape[1],), dtype)
    for weight_OI, first in zip(weights_OI, np.cumsum([0, *counts]), strict=False):
        compiled.laid(array(weight_OI.contiguous()), first, panels_L)
    return panels_L


class Panels:
    """Layers that have the same input, as one product with a copy of their weights: outputs side by side, computed in
    dtype. out: of the outputs, dtype if it is not said."""

    def __init__(
        self, layers: Sequence[nn.Linear], dtype: torch.dtype, compiled: Any, out: torch.dtype | None = None
    ) -> None:
        self.dtype, self.compiled, self.out = dtype, compiled, out or dtype
        self.panels_L = laid([layer.weight.detach() for layer in layers], dtype, compiled)
        zeros = (np.zeros(len(layer.weight), np.float32) for layer in layers)
        # Rounded as updates round them where outputs are, or what is sampled would be scored otherwise.
        biases = (None if layer.bias is None else array(layer.bias.detach().to(self.out)) for layer in layers)
        self.bias_O = np.concatenate([zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)])

    @staticmethod
    def serve(layers: Sequence[nn.Linear], dtype: torch.dtype) -> bool:
        """Whether they can: bfloat16 comes in pairs."""
        return dtype == torch.float32 or (dtype == torch.bfloat16 and layers[0].in_features % 2 == 0)

    def __call__(self, x: Tensor) -> Tensor:
        x_NI = either(x.to(self.dtype).contiguous()).reshape(-1, x.shape[-1])
        out_NO, out = room((len(x_NI), len(self.bias_O)), self.out)
        self.compiled.product(x_NI, self.panels_L, self.bias_O, out_NO, False)
        return out.view(*x.shape[:-1], -1)
