"""torch, imported when something is first asked of it.

Importing it takes seconds, and who mistyped a recipe, wants help or a report needs none of it. What these pass through
says ``from coevolve.late import Tensor, torch``, and asks torch for nothing while it is imported; everybody else
imports torch itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ForwardRef

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:

    class _Torch:
        """Stands for the module."""

        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    torch = _Torch()
    Tensor = ForwardRef("torch.Tensor")
    """In annotations and aliases alone; ``isinstance`` wants ``torch.Tensor``."""


@contextmanager
def collector_off() -> Iterator[None]:
    """Where much is made that stays, as in importing: looking for garbage among it would take a sixth of the time.

    Nor is it looked at again, if this is the first time in this process.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            gc.freeze()
        if before:
            gc.enable()
