"""torch, imported when something is first asked of it.

Importing it takes seconds, and who mistyped a recipe, wants help or a report needs none of it. What these pass through
says ``from coevolve.late import Tensor, torch``, and asks torch for nothing while it is imported; everybody else
imports torch itself.
"""

from __future__ import annotations

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
