"""A stand-in for torch, which is imported at the first use of one of its attributes.

Importing torch takes seconds, which a mistyped recipe, a help text or a report does not need. The modules that such
commands import use ``from coevolve.late import Tensor, torch``, and use no attribute of torch at import time; all other
modules import torch itself.
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
        """The stand-in for the torch module."""

        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    torch = _Torch()
    Tensor = ForwardRef("torch.Tensor")
    """In annotations and aliases alone; ``isinstance`` wants ``torch.Tensor``."""


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch garbage collection off in this context, for code that creates many long-lived objects, such as imports, of
    which it would take a sixth of the time.

    At the first exit in a process all objects are frozen, so that later collections skip them, too.
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
