"""The range of rewards that a task may pay.

Rewards are summed over turns and tokens, squared and summed again, in float32, whose largest number is 3e38. So there
is a largest reward, far above any useful one: the next float32 after it is 65,536 larger.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any, cast

LARGEST = 1e12

_ALIKE = 1e-6
"""Rewards closer than this fraction of the largest reward count as equal."""


def is_payable(value: Any) -> bool:
    """Return whether this is a real number, not NaN, and at most LARGEST in size."""
    return isinstance(value, Real) and bool(abs(cast(float, value)) <= LARGEST)


def alike(rewards: Iterable[float], largest: float) -> bool:
    """Return whether all rewards are equal up to rounding. largest: the size of the largest reward."""
    found = list(rewards)
    return max(found) - min(found) <= _ALIKE * largest
