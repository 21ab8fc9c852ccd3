"""What rows remember where attention is a compiled loop: on the CPU, with one thread, if numba is installed.

Letters: B rows, E prompts, P tokens of the longest, T tokens of a row's own at most, S = 1 new token; H query heads, K
key heads, X = H + 2 K, D head dimension.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.compute import prefix_cache as cascade
from coevolve.compute.cpu.arrays import array, either
from coevolve.compute.packed_tokens import Packed, pack
from coevolve.compute.prefix_cache import Cascade
from coevolve.compute.prefix_tree import Forest

_TRIED: bool | None = None
"""While ``probe`` tries a model: whether with loops or without, however many threads there are."""


@cache
def module() -> Any | None:
    """The module ``compiled``; None where numba is not installed or told not to compile."""
    try:
        from numba import config

        return None if getattr(config, "DISABLE_JIT", 0) else importlib.import_module("coevolve.compute.cpu.loops")
    except (ImportError, AttributeError) as error:
        if not (isinstance(error, ImportError) and error.name == "numba"):
            warnings.warn(f"numba cannot be used, so sampling and learning are slower: {error}", stacklevel=2)
        return None


def usable(device: torch.device) -> bool:
    """Whether there are loops for this device, and one thread, as they have."""
    if _TRIED is not None:
        return _TRIED
    alone = device.type == "cpu" and torch.get_num_threads() == 1 and not cascade.STATIC
    return alone and module() is not None


def loops(body: Any) -> Any | None:
    """The loops, where they are usable and ``probe`` has found that this model, below its head, takes them."""
    return module() if body.takes_loops and usable(next(body.parameters()).device) else None


@contextmanager
def tried(with_loops: bool) -> Iterator[None]:
    """Compute with the loops, or without."""
    global _TRIED
    before, _TRIED = _TRIED, with_loops
    try:
        yield
    finally:
        _TRIED = before


class Looped(Cascade):
    """A ``Cascade`` whose prompts lie as the rows' own tokens do, [E, K, P, 2 D], and are attended over with them."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One new token a row: [B, H, 1, D] and twice [B, K, 1, D] to [B, 1, H, D]."""
        heads_BXD = array(torch.cat((query, key, value), 1).contiguous())[:, :, 0]
        turned = np.ones_like(heads_BXD[:, 0]), np.zeros_like(heads_BXD[:, 0])  # as they are
        return self.attend_heads(layer, heads_BXD, *turned, scaling).to(query.dtype)

    def attend_heads(self, layer: int, heads_BXD: Any, cos_BD: Any, sin_BD: Any, scaling: float) -> Tensor:
        """The same of arrays, queries, keys and values side by side, and still to be turned."""
        seen = self.seen(layer, heads_BXD.dtype)
        rows, heads, size = heads_BXD.shape
        out_BSHD = np.empty((rows, 1, heads - 2 * seen[0].shape[1], size), np.float32)
        compiled = module()
        assert compiled is not None
        compiled.attend(heads_BXD, cos_BD, sin_BD, *seen, self.filled, scaling, out_BSHD[:, 0])
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

    def _pack(self, forest: Forest) -> Packed:
        return pack(forest, self.device, module())

    def _stored(self, key_EKPD: Tensor, value_EKPD: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat((key_EKPD, value_EKPD), -1).float(),)

    def _arrange(self) -> None:
        super()._arrange()
        self.arrays: dict[int, tuple[Any, ...]] = {}  # others when rows have left
        prompts = next(iter(self.prompt.values()))[0]
        late_EP = torch.zeros(prompts.shape[0], prompts.shape[2]) if self.late_EP is None else self.late_EP
        self.length_E = (late_EP == 0).sum(1).numpy()
