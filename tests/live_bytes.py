"""The memory that work takes: of a GPU by PyTorch's own count, on the CPU by looking at every tensor that is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Live(TorchDispatchMode):
    """Counts the bytes of those tensors made meanwhile that still exist."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self.before = 0, set[int]()
        self.there: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        self.before |= given - self.there.keys()  # made before, and not counted
        found = func(*args, **(kwargs or {}))
        self.there = {key: one for key, one in self.there.items() if not one[0].expired()}
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and (key := x.untyped_storage()._cdata) not in self.before:
                self.there[key] = StorageWeakRef(x.untyped_storage()), x.untyped_storage().nbytes()
        self.most = max(self.most, sum(size for _, size in self.there.values()))
        return found


def peak(device: str, work: Callable[[], object]) -> int:
    """The most bytes of tensors that exist at a time during the work, beside those that exist before."""
    if device == "cpu":
        with _Live() as live:
            work()
        return live.most
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before
