"""Conversion of tensors to the loops' arrays: float32, or bfloat16 as uint16, in the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def array(x: Tensor) -> Any:
    """Return the tensor as a float32 array, in the same memory if it is float32 already."""
    return (x if x.dtype == torch.float32 else x.float()).numpy()


def either(x: Tensor) -> Any:
    """Return a bfloat16 tensor as a uint16 array in the same memory, and any other one as ``array`` does."""
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else array(x)


def buffer(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, Tensor]:
    """Return an uninitialised array for a loop to write to, and the same memory as a tensor."""
    made = np.empty(shape, np.uint16 if dtype == torch.bfloat16 else np.float32)
    tensor = torch.from_numpy(made)
    return made, tensor.view(dtype) if dtype == torch.bfloat16 else tensor
