"""What the processor has that loops are compiled for."""

from __future__ import annotations

import ctypes
import platform

from numba.core import registry

_FEATURES: str = registry.cpu_target.target_context.codegen().magic_tuple()[2]
"""As LLVM calls them, for the processor that numba compiles for."""

WIDE = "+avx512f" in _FEATURES
"""Whether it has 32 registers of sixteen numbers; with fewer or shorter ones two rows' sums fill them."""

PAIRS = "+avx512bf16" in _FEATURES
"""Whether one instruction multiplies pairs of bfloat16 and adds them up."""

_AMX = "+amx-tile" in _FEATURES and "+amx-bf16" in _FEATURES

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
"""Linux' call on x86-64, its request for a part of the processor that not every process may use, and that part."""


def _may_use_tiles() -> bool:
    """Ask the kernel for the room that tiles take when it changes threads; the answer is for all of the process."""
    if not _AMX or platform.system() != "Linux":
        return False
    return int(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)) == 0


TILES = _may_use_tiles()
"""Whether it multiplies tiles of bfloat16 (AMX), and the kernel lets us."""

VARIANT = "" if TILES == _AMX else "_without_tiles"
"""Of machine code that is kept: numba knows it by what the processor has, not by what the kernel lets us use."""
