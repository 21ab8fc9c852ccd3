"""Tensors as the compiled loops take them: arrays of float32, or of bfloat16 as uint16, in the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def array(x: Tensor) -> Any:
    """As the loops take it: float32, in the same memory if it is."""
    return (x if x.dtype == torch.float32 else x.float()).numpy()


def either(x: Tensor) -> Any:
    """As the loops take what products make: bfloat16, as uint16, in the same memory; or ``array``."""
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else array(x)


def buffer(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, Tensor]:
    """What a loop writes to, as it takes it, and the same memory as a tensor."""
    made = np.empty(shape, np.uint16 if dtype == torch.bfloat16 else np.float32)
    tensor = torch.from_numpy(made)
    return made, tensor.view(dtype) if dtype == torch.bfloat16 else tensor
