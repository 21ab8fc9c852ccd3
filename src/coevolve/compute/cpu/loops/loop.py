"""How loops are compiled and for what processor, and what several of them have in them."""

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


def _forget_old() -> None:
    """Remove what was compiled before any of these files changed: numba looks at a loop's own file only, not at those
    of the loops that it is made of."""
    folder = Path(__file__).parent
    newest = max(file.stat().st_mtime for file in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        with suppress(OSError):  # another process was faster, or it is not ours
            if index.stat().st_mtime < newest:
                index.unlink()


_forget_old()


def by_numba(
    fastmath: set[str], makes_arrays: bool = False, cached: bool = True
) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function when it is called first, and keeps the result beside its file if ``cached``.

    Where arrays are made, numba counts who uses which, arguments too, which takes time at every call.
    """
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath, "_nrt": makes_arrays}

    def compiled(function: Callable[..., Any]) -> Any:
        function.__qualname__ += VARIANT
        found = numba.njit(**settings)(function)
        with suppress(RuntimeError):  # there is no folder to keep it in: every process compiles
            if cached:
                found.enable_caching()
        return found

    return compiled


# Sums in any order, so that they use vectors. Numbers that are not finite stay what they are, and are reported. An
# array's row has a name of its own where it is written to: else numba takes no vectors either.
_ANY_ORDER = {"reassoc", "contract", "nsz"}
loop = by_numba(_ANY_ORDER)
loop_with_arrays = by_numba(_ANY_ORDER, makes_arrays=True)
uncached = by_numba(_ANY_ORDER, cached=False)  # several of one name, whose files processes that compile could mix up


inlined = numba.njit(inline="always", error_model="numpy")
"""For what is part of a loop."""


@loop
def most(x_T: Any, count: Any) -> Any:
    """The largest of so many numbers; anything if one of them is none, whose sum is not finite whatever this gives."""
    top, wide, whole = x_T[0], count // (4 * SIZE) * (4 * SIZE), count // SIZE * SIZE
    if whole:
        a = load(x_T, (0,))
        b, c, d = a, a, a
        for t in range(0, wide, 4 * SIZE):  # four, because each waits for the one before
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
    """e to the x <= 0 (anything beyond some 88), to the last bit but one (in vectors, which numba's own takes none of).

    2^n e^r with r at most half a log 2, whose two parts are subtracted one by one; below -87 as at -87.
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
