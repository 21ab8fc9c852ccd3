"""What this processor multiplies bfloat16 with, and whether float32 is faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

_FEW, _MANY = 8, 256
"""Rows from which float32 is faster, with weights that have to be made float32 first: without any instructions for
bfloat16; and with Intel's AVX512-BF16, of which 82 GFLOPS of a core were measured where float32 has 141 (there from 128
rows where a process keeps memory that it frees, as workers do, and from 256 to 512 where it does not)."""


def multiplied_in(dtype: torch.dtype, device: torch.device, rows: int, kept: bool = False) -> torch.dtype:
    """What so many rows of numbers in dtype are to be multiplied in there. Float32 has all products of bfloat16, so
    what differs is how fast it is: with AVX2 alone a gradient in bfloat16 took 15 to 140 times as long (8 and 256
    rows by 1536 x 8960 weights, on a busy Zen 3). kept: whether the weights are made float32 once for many products;
    without any instructions for bfloat16 one row by an adapter's then took a quarter of the time, eight an eighth."""
    if dtype != torch.bfloat16 or device.type != "cpu" or rows < _least_rows(kept):
        return dtype
    return torch.float32


@cache
def _least_rows(kept: bool) -> float:
    by = bfloat16_by()
    if by == "nothing":
        return 1 if kept else _FEW
    return _MANY if by == "AVX512-BF16" and intel() else math.inf


def bfloat16_by() -> Literal["AMX", "AVX512-BF16", "nothing", "unknown"]:
    """Its instructions for products of bfloat16; "unknown" of other processors than x86-64, and where PyTorch does not
    tell."""
    has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if has.get("architecture") != "x86_64":
        return "unknown"
    return "AMX" if has.get("amx_bf16") else "AVX512-BF16" if has.get("avx512_bf16") else "nothing"


def intel() -> bool:
    """Whether it is one of Intel's, as far as Linux tells."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
