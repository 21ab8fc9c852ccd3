"""What rows remember where attention is a compiled loop: on the CPU, with one thread, if numba is installed.

Letters: B rows, E prompts, P tokens of the longest; H query heads, K key heads, X = H + 2 K, D head dimension.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.policies import cascade
from coevolve.policies.cascade import Cascade


def loops(device: torch.device) -> Any | None:
    """The same where it is of use: on the CPU, with one thread, as the loops have."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return compiled() if alone and not cascade.STATIC else None


@cache
def compiled() -> Any | None:
    """The module ``compiled``; None where numba is not installed."""
    try:
        return importlib.import_module("coevolve.policies.compiled")
    except ImportError:
        return None


def array(x: Tensor) -> Any:
    """As the loops take it: float32, in the same memory if it is."""
    return (x if x.dtype == torch.float32 else x.float()).numpy()


class Looped(Cascade):
    """A ``Cascade`` whose prompts lie as the rows' own tokens do, [E, P, K, 2 D], and are attended over with them."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One new token a row: [B, H, 1, D] and twice [B, K, 1, D] to [B, 1, H, D]."""
        heads_BXD = array(torch.cat((query, key, value), 1))[:, :, 0]
        turned = np.ones_like(heads_BXD[:, 0]), np.zeros_like(heads_BXD[:, 0])  # as they are
        return self.attend_heads(layer, heads_BXD, *turned, scaling).to(query.dtype)

    def attend_heads(self, layer: int, heads_BXD: Any, cos_BD: Any, sin_BD: Any, scaling: float) -> Tensor:
        """The same of arrays, queries, keys and values side by side, and still to be turned."""
        if layer not in self.arrays:
            (prompt,) = self.prompt[layer]
            own = self.own.setdefault(layer, torch.empty((len(heads_BXD), self.steps, *prompt.shape[2:])))
            self.arrays[layer] = prompt.numpy(), own.numpy()
        prompt_EPKD, own_BTKD = self.arrays[layer]
        rows, heads, size = heads_BXD.shape
        out_BSHD = np.empty((rows, 1, heads - 2 * prompt_EPKD.shape[2], size), np.float32)
        seen = (prompt_EPKD, self.length_E, self.prompt_B, own_BTKD)
        module = compiled()
        assert module is not None
        module.attend(heads_BXD, cos_BD, sin_BD, *seen, self.filled, scaling, out_BSHD[:, 0])
        return torch.from_numpy(out_BSHD)

    def _stored(self, key_EKPD: Tensor, value_EKPD: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat((key_EKPD, value_EKPD), -1).float().transpose(1, 2).contiguous(),)

    def _arrange(self) -> None:
        super()._arrange()
        self.arrays: dict[int, tuple[Any, Any]] = {}
        """Of each layer, prompts and own tokens; they are others when rows have left."""
        prompts = next(iter(self.prompt.values()))[0]
        late_EP = torch.zeros(prompts.shape[:2]) if self.late_EP is None else self.late_EP
        self.length_E = (late_EP == 0).sum(1).numpy()
