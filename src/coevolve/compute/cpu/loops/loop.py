"""Compilation of loops for this processor, and functions that several loops use."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import registry

from coevolve.compute.cpu.loops.vectors import SIZE, larger, largest, load

_FEATURES: str = registry.cpu_target.target_context.codegen().magic_tuple()[2]
"""The features of the processor that numba compiles for, by LLVM's names."""

WIDE = "+avx512f" in _FEATURES
"""Whether the processor has 32 registers of sixteen numbers; fewer or shorter ones are filled by two rows' sums."""

PAIRS = "+avx512bf16" in _FEATURES
"""Whether the processor has an instruction that multiplies pairs of bfloat16 and adds them up."""

_AMX = "+amx-tile" in _FEATURES and "+amx-bf16" in _FEATURES

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
"""Linux' system call on x86-64, its request to use a part of the processor's state, and the number of that part."""


def _may_use_tiles() -> bool:
    """Ask the kernel for permission to use tiles, whose state it saves between threads; return whether the process
    may."""
    if not _AMX or platform.system() != "Linux":
        return False
    return int(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)) == 0


TILES = _may_use_tiles()
"""Whether the processor multiplies tiles of bfloat16 (AMX), and the kernel allows it."""

VARIANT = "" if TILES == _AMX else "_without_tiles"
"""A suffix for cached machine code: numba identifies it by the processor's features, not by whether the kernel lets
this process use tiles."""


def _forget_old() -> None:
    """Remove machine code older than any of these files: numba checks a loop's own file only, not those of the loops
    that it calls."""
    folder = Path(__file__).parent
    newest = max(file.stat().st_mtime for file in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        with suppress(OSError):  # another process was faster, or the file is another user's
            if index.stat().st_mtime < newest:
                index.unlink()


_forget_old()


def by_numba(
    fastmath: set[str], makes_arrays: bool = False, cached: bool = True
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function on its first call, and caches the result beside its file if
    ``cached``.

    makes_arrays: numba then counts references to arrays, arguments included, which takes time at every call.
    """
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath, "_nrt": makes_arrays}

    def compiled(function: Callable[..., Any]) -> Any:
        function.__qualname__ += VARIANT
        found = numba.njit(**settings)(function)
        with suppress(RuntimeError):  # there is no folder for the cache: every process compiles
            if cached:
                found.enable_caching()
        return found

    return compiled


# Sums in any order, so that they use vectors. Numbers that are not finite stay so, and are reported. A row that is
# written to gets a variable of its own: else numba does not use vectors either.
_ANY_ORDER = {"reassoc", "contract", "nsz"}
loop = by_numba(_ANY_ORDER)
loop_with_arrays = by_numba(_ANY_ORDER, makes_arrays=True)
uncached = by_numba(_ANY_ORDER, cached=False)  # several share a name: processes could mix up their cache files


inlined = numba.njit(inline="always", error_model="numpy")
"""The decorator for functions that are inlined into loops."""


@loop
def most(x_T: Any, count: Any) -> Any:
    """Return the largest of ``count`` numbers; with a NaN among them any number, since the later sum is NaN in any
    case."""
    top, wide, whole = x_T[0], count // (4 * SIZE) * (4 * SIZE), count // SIZE * SIZE
    if whole:
        a = load(x_T, (0,))
        b, c, d = a, a, a
        for t in range(0, wide, 4 * SIZE):  # four at a time, because each maximum waits for the one before
            a, b = larger(a, load(x_T, (t,))), larger(b, load(x_T, (t + SIZE,)))
            c, d = larger(c, load(x_T, (t + 2 * SIZE,))), larger(d, load(x_T, (t + 3 * SIZE,)))
        for t in range(wide, whole, SIZE):
            a = larger(a, load(x_T, (t,)))
        top = largest(larger(larger(a, b), larger(c, d)))
    for t in range(whole, count):
        top = max(top, x_T[t])
    return top


@numba.njit(inline="always", fastmath={"contract"})
def exp(x: Any) -> Any:
    """Return e to the x, for x <= 0 (wrong above some 88), to the last bit but one; unlike numba's own, it vectorises.

    Computed as 2^n e^r with |r| at most half of log 2, subtracted in two parts; below -87 the result is that at -87.
    """
    x = max(x, np.float32(-87))  # NaN stays
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    series = np.float32(1 / 5040)
    series = series * r + np.float32(1 / 720)
    series = series * r + np.float32(1 / 120)
    series = series * r + np.float32(1 / 24)
    series = series * r + np.float32(1 / 6)
    series = series * r + np.float32(1 / 2)
    series = (series * r + np.float32(1)) * r + np.float32(1)
    power = (np.int32(n) + np.int32(127)) << np.int32(23)
    return series * np.int32(power).view(np.float32)
