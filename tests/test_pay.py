"""Which numbers may be paid, and which of them are the same, at their edges."""

from fractions import Fraction

import numpy as np
import pytest

from coevolve.pay import LARGEST, alike, is_payable


def test_what_may_be_paid():
    assert all(map(is_payable, [LARGEST, -LARGEST, 0, True, Fraction(1, 3), np.float32(0.5), np.int64(-2)]))
    assert not any(map(is_payable, [LARGEST + 1, -LARGEST - 1, float("nan"), -float("inf"), "1", None, 1j, [1.0]]))


@pytest.mark.parametrize(
    ("rewards", "largest", "same"),
    [
        ([0, 0, 0], 0, True),
        ([0, 1e-9], 1e-9, False),  # small, and not beside what is paid
        ([1e6, 1e6 + 1], 1e6, True),  # a millionth of the largest
        ([1e6, 1e6 + 2], 1e6, False),
        ([-1e6, -1e6 - 1], 1e6, True),
        ([-1, 1], 1, False),
        ([0.2, 0.2 + 1e-7, 0.2 + 3e-7], 0.2, False),  # not the neighbours, but the farthest
        ([1, 2], 1e6, True),  # beside something much larger
        (iter([1.0, 1.0]), 1, True),
    ],
)
def test_the_same_but_for_rounding(rewards, largest, same):
    assert alike(rewards, largest) is same
