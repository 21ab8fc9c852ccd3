"""The expected best of k samples, estimated from n samples."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb


def best_at(values: Sequence[float], k: int) -> float:
    """Return the expected maximum of k of these n values drawn without replacement, an unbiased estimate of best of k.

    The i-th smallest is the largest of comb(i - 1, k - 1) of the comb(n, k) draws. For values of 0 and 1, c of them 1,
    it is pass@k = 1 - comb(n - c, k) / comb(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1). Raises ValueError
    unless 1 <= k <= n.
    """
    n = len(values)
    if not 1 <= k <= n:
        raise ValueError(f"the best of {k} of {n} samples; want 1 <= k <= {n}")
    # In fractions: with a thousand samples the number of draws exceeds the range of a float.
    largest = (comb(i - 1, k - 1) * Fraction(float(value)) for i, value in enumerate(sorted(values), 1))
    return float(sum(largest) / comb(n, k))
