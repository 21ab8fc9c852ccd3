"""Stateless random numbers, each a hash of its name.

The name is what the number is for: (seed, step, problem, member, role, round, position) for a token's uniform, (seed,
epoch) for a shuffle, (seed, step) for a length. So a sample does not depend on the batch it was drawn in, a resumed run
needs no generator state, and a second device draws the same turns up to float rounding.

Letters: B rows.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Hashable

from coevolve.late import Tensor, torch

# The constants of the splitmix64 finaliser, as signed 64-bit integers because torch has no unsigned arithmetic.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX2 = 0x94D049BB133111EB - (1 << 64)


def key(*parts: Hashable) -> int:
    """Return a signed 64-bit hash of ``repr`` of the parts: stable across processes, machines and Python versions."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def integer(low: int, high: int, *parts: Hashable) -> int:
    """Return a uniform integer in [low, high], determined by ``parts``."""
    return random.Random(key(*parts)).randint(low, high)


def permutation(n: int, *parts: Hashable) -> list[int]:
    """Return a uniform shuffle of range(n), determined by ``parts``."""
    order = list(range(n))
    random.Random(key(*parts)).shuffle(order)
    return order


def seed_everything(seed: int) -> None:
    """Seed the global generators for tasks and plays of users; Coevolve itself never draws from them."""
    import numpy as np  # imported late, like torch

    number = key(seed, "global") & 0xFFFFFFFF
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Return the logical right shift (torch shifts signed integers arithmetically)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def uniform(key_B: Tensor, position: int | Tensor) -> Tensor:
    """Return one float32 in [0, 1) per row for this token position: the top 24 bits of splitmix64 of key + position.

    key_B: int64, on any device. Integer arithmetic only, so every device gives the same bits.
    """
    assert key_B.dtype == torch.int64, key_B.dtype
    x = key_B + (position + 1) * _STEP if isinstance(position, torch.Tensor) else key_B + _wrap((position + 1) * _STEP)
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    x = x ^ _shift(x, 31)
    return _shift(x, 40).to(torch.float32) * (1.0 / (1 << 24))


def _wrap(x: int) -> int:
    """Return the signed 64-bit integer with the same low bits as a Python integer."""
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)
