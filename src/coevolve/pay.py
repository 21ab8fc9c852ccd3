"""Which numbers a task may pay.

What is paid is summed over turns and tokens, squared and summed again, in float32, which ends at 3e38. So there is a
largest reward, far above any that means something: float32 has the next one 65,536 above it.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any, cast

LARGEST = 1e12

_ALIKE = 1e-6
"""Numbers closer than this part of the largest reward are the same."""


def is_payable(value: Any) -> bool:
    """True for a real number that is neither NaN nor larger than LARGEST."""
    return isinstance(value, Real) and bool(abs(cast(float, value)) <= LARGEST)


def alike(rewards: Iterable[float], largest: float) -> bool:
    """Whether all are the same but for rounding. largest: the size of the largest reward there is."""
    found = list(rewards)
    return max(found) - min(found) <= _ALIKE * largest
