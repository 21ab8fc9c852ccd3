"""Attention of packed tokens over a forest, and its gradient: each looks at its own segment up to itself and then along
its path, where they lie.

Letters: N packed tokens, S segments (the first token of each, how many it has, and its parent, negative for none), I
queries at a time, T what they see, H query heads, K key heads, D head dimension, L an array as one line.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coevolve.compute.cpu.loops.attention import dots, mix
from coevolve.compute.cpu.loops.loop import exp, loop, loop_with_arrays, most
from coevolve.compute.cpu.loops.vectors import SIZE

_QUERIES, _SEEN = 32, 64
"""Tokens of a segment that look at as many others at a time: few enough for a core's nearest cache."""


@loop_with_arrays
def walk(
    q_L: Any, k_L: Any, v_L: Any, shape: Any, place_S: Any, count_S: Any, parent_S: Any, scaling: Any, out_L: Any,
    lse_NH: Any,
) -> None:  # fmt: skip
    """Attention over a forest, [N, H, D] over [N, K, D], and the log-sum-exp of the scores. shape: (H, K, D).

    Some queries of a segment at a time. What they see is numbered from their own segment's beginning, then come its
    parent's tokens, and so on.
    """
    (heads, keys, size), segments = shape, (place_S, count_S, parent_S)
    width = len(lse_NH) + SIZE
    share_IT = np.empty((_QUERIES, width), np.float32)
    share_L = share_IT.reshape(-1)
    for s in range(len(place_S)):
        end = place_S[s] + count_S[s]
        for h in range(heads):
            q, k = (h * size, heads * size, size), (h // (heads // keys) * size, keys * size, size)
            for first in range(place_S[s], end, _QUERIES):
                last = min(first + _QUERIES, end)
                tokens = _products(q_L, q, k_L, k, s, first, last, *segments, share_L, width)
                for n in range(first, last):
                    share_T, own = share_IT[n - first], n + 1 - place_S[s]
                    _hide(share_T, own, last - place_S[s], share_T[0])
                    top, sum = most(share_T, tokens), np.float32(0)
                    for t in range(tokens):
                        share_T[t] = exp(scaling * (share_T[t] - top))
                    _hide(share_T, own, last - place_S[s], np.float32(0))
                    for t in range(tokens):
                        sum += share_T[t]
                    for t in range(tokens):
                        share_T[t] /= sum
                    lse_NH[n, h] = scaling * top + np.log(sum)
                _mixes(share_L, width, v_L, k, s, first, last, *segments, out_L, q)


@loop_with_arrays
def walk_gradient(
    grad_L: Any, q_L: Any, k_L: Any, v_L: Any, lse_NH: Any, shape: Any, place_S: Any, count_S: Any, parent_S: Any,
    scaling: Any, grad_q_L: Any, grad_k_L: Any, grad_v_L: Any,
) -> None:  # fmt: skip
    """The gradients of queries, keys and values, which are added (FlashAttention, arXiv 2205.14135, appendix B.4)."""
    (heads, keys, size), segments, width = shape, (place_S, count_S, parent_S), len(lse_NH) + SIZE
    share_IT, slope_IT = np.empty((_QUERIES, width), np.float32), np.empty((_QUERIES, width), np.float32)
    share_L, slope_L = share_IT.reshape(-1), slope_IT.reshape(-1)
    for s in range(len(place_S)):
        end = place_S[s] + count_S[s]
        for h in range(heads):
            q, k = (h * size, heads * size, size), (h // (heads // keys) * size, keys * size, size)
            for first in range(place_S[s], end, _QUERIES):
                last = min(first + _QUERIES, end)
                tokens = _products(q_L, q, k_L, k, s, first, last, *segments, share_L, width)
                _products(grad_L, q, v_L, k, s, first, last, *segments, slope_L, width)
                for n in range(first, last):
                    share_T, slope_T, inner, lse = share_IT[n - first], slope_IT[n - first], np.float32(0), lse_NH[n, h]
                    for t in range(tokens):
                        share_T[t] = exp(scaling * share_T[t] - lse)  # what is hidden next may be anything
                    _hide(share_T, n + 1 - place_S[s], last - place_S[s], np.float32(0))
                    for t in range(tokens):
                        inner += share_T[t] * slope_T[t]
                    for t in range(tokens):
                        slope_T[t] = scaling * share_T[t] * (slope_T[t] - inner)
                _mixes(slope_L, width, k_L, k, s, first, last, *segments, grad_q_L, q)
                _mixes_back(slope_L, width, q_L, q, s, first, last, *segments, grad_k_L, k)
                _mixes_back(share_L, width, grad_L, q, s, first, last, *segments, grad_v_L, k)


@loop
def _hide(x_T: Any, first: Any, last: Any, number: Any) -> None:
    """Put a number where a query looks at tokens of its segment that come later."""
    for t in range(first, last):
        x_T[t] = number


# x, y and out: of one head's tokens, where in the line the first begins, how far the next is, and their size.
@loop
def _products(
    x_L: Any, x: Any, y_L: Any, y: Any, s: Any, first: Any, last: Any, place_S: Any, count_S: Any, parent_S: Any,
    out_L: Any, width: Any,
) -> Any:  # fmt: skip
    """Of x, from first to last of segment s, with all that they see; how much that is. Some of it at a time, which
    stays in the cache."""
    before, a = 0, s
    while a >= 0:
        count = last - place_S[a] if a == s else count_S[a]
        for t in range(0, count, _SEEN):
            seen, at = y[0] + (place_S[a] + t) * y[1], before + t
            for n in range(first, last):
                out = (n - first) * width + at
                dots(x_L, x[0] + n * x[1], x[2], y_L, seen, y[1], min(_SEEN, count - t), out_L, out)
        before, a = before + count, parent_S[a]
    return before


@loop
def _mixes(
    share_L: Any, width: Any, y_L: Any, y: Any, s: Any, first: Any, last: Any, place_S: Any, count_S: Any,
    parent_S: Any, out_L: Any, out: Any,
) -> None:  # fmt: skip
    """Add to out, from first to last of segment s, all that they see by its share."""
    before, a = 0, s
    while a >= 0:
        count = last - place_S[a] if a == s else count_S[a]
        for t in range(0, count, _SEEN):
            seen, at = y[0] + (place_S[a] + t) * y[1], before + t
            for n in range(first, last):
                share, to = (n - first) * width + at, out[0] + n * out[1]
                mix(share_L, share, 1, y_L, seen, y[1], min(_SEEN, count - t), out_L, to, out[2])
        before, a = before + count, parent_S[a]


@loop
def _mixes_back(
    share_L: Any, width: Any, x_L: Any, x: Any, s: Any, first: Any, last: Any, place_S: Any, count_S: Any,
    parent_S: Any, out_L: Any, out: Any,
) -> None:  # fmt: skip
    """Add to all that is seen what sees it, by the same shares."""
    before, a = 0, s
    while a >= 0:
        count = last - place_S[a] if a == s else count_S[a]
        for t in range(count):
            to = out[0] + (place_S[a] + t) * out[1]
            mix(share_L, before + t, width, x_L, x[0] + first * x[1], x[1], last - first, out_L, to, out[2])
        before, a = before + count, parent_S[a]
