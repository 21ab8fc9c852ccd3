"""What this processor multiplies bfloat16 with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch


def bfloat16_by() -> Literal["AMX", "AVX512-BF16", "nothing", "unknown"]:
    """Its instructions for products of bfloat16; "unknown" of other processors than x86-64, and where PyTorch does not
    tell."""
    has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if has.get("architecture") != "x86_64":
        return "unknown"
    return "AMX" if has.get("amx_bf16") else "AVX512-BF16" if has.get("avx512_bf16") else "nothing"
