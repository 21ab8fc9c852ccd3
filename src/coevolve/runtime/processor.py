"""The instructions that this processor has for bfloat16, and whether products in float32 are faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

_FEW, _MANY = 8, 256
"""The number of rows from which float32 is faster although the weights have to be converted to float32 first: without
any instructions for bfloat16; and with Intel's AVX512-BF16, with which a core reached 82 GFLOPS where float32 reached
141 (measured there: from 128 rows in a process that keeps memory that it frees, as workers do, and from 256 to 512 in
one that does not)."""


def multiplied_in(dtype: torch.dtype, device: torch.device, rows: int, kept: bool = False) -> torch.dtype:
    """Return the dtype in which ``rows`` rows of ``dtype`` are multiplied on ``device``.

    Float32 represents all products of bfloat16 exactly, so only the speed differs: with AVX2 alone a gradient in
    bfloat16 took 15 to 140 times as long (8 and 256 rows by 1536 x 8960 weights, on a busy Zen 3). kept: whether the
    weights are converted to float32 once for many products; without any instructions for bfloat16, one row by an
    adapter's weights then took a quarter of the time, eight rows an eighth."""
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
    """Return the processor's instructions for products of bfloat16; "unknown" for processors other than x86-64, and if
    PyTorch does not report them."""
    has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if has.get("architecture") != "x86_64":
        return "unknown"
    return "AMX" if has.get("amx_bf16") else "AVX512-BF16" if has.get("avx512_bf16") else "nothing"


def intel() -> bool:
    """Return whether /proc/cpuinfo names an Intel processor; False where there is no such file."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
