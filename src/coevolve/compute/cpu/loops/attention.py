"""Attention of a rollout's new tokens, and of packed tokens over a tree with its gradient.

A packed token looks at its own segment up to itself and then along its path, where they lie.

Letters: B rows, E prompts, N packed tokens, S segments (the first token of each, how many it has, and its parent,
negative for none), I queries at a time, T tokens that are seen, at most, H query heads, K key heads, X = H + 2 K, D
head dimension, L an array as one line. In a rollout a token's key lies beside its value: [K, T, 2 D].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coevolve.compute.cpu.loops.between import copied, turned
from coevolve.compute.cpu.loops.loop import exp, inlined, loop, loop_with_arrays, most
from coevolve.compute.cpu.loops.vectors import SIZE, every, fetch, load, plus, quarters, read, store, totals

_LINE = 64
"""Bytes that memory hands over together."""


@loop_with_arrays
def attend(
    heads_BXD: Any, cos_BD: Any, sin_BD: Any, prompt_EKTD: Any, length_E: Any, prompt_B: Any, own_BKTD: Any,
    filled: Any, scaling: Any, out_BHD: Any,
) -> None:  # fmt: skip
    """Attention of one token a row over the row's prompt and its own tokens, which it joins as number ``filled``.

    heads_BXD: queries, keys and values, none of them turned. These and own tokens may be bfloat16. length_E: tokens of
    the prompts; prompt_B: which one is each row's. A head's keys of one prompt serve all its rows from the nearest
    cache; what the row behind it has of its own is fetched meanwhile (behind the last one, whatever is there).
    """
    (rows, heads, size), (_, keys, room, step) = out_BHD.shape, own_BKTD.shape
    longest, many, q_BHD = prompt_EKTD.shape[2], heads // keys, np.empty_like(out_BHD)
    share_T = np.empty(longest + room + SIZE, np.float32)
    prompt_L, own_L, out_L, q_L = prompt_EKTD.reshape(-1), own_BKTD.reshape(-1), out_BHD.reshape(-1), q_BHD.reshape(-1)
    _take(heads_BXD, cos_BD, sin_BD, scaling, q_BHD, own_BKTD, filled)
    out_L[:] = 0
    for k in range(keys):
        for b in range(rows):
            prompted, prompt = length_E[prompt_B[b]], (prompt_B[b] * keys + k) * longest * step
            own, tokens = (b * keys + k) * room * step, prompted + filled + 1
            part = filled * step // (4 * many)
            for h in range(k * many, (k + 1) * many):
                q, ahead = (b * heads + h) * size, own + keys * room * step + (h - k * many) * 4 * part
                _fetch(own_L, ahead, part)
                dots(q_L, q, size, prompt_L, prompt, step, prompted, share_T, 0)
                _fetch(own_L, ahead + part, part)
                dots(q_L, q, size, own_L, own, step, filled + 1, share_T, prompted)
                _normalise(share_T, tokens)
                _fetch(own_L, ahead + 2 * part, part)
                mix(share_T, 0, 1, prompt_L, prompt + size, step, prompted, out_L, q, size)
                _fetch(own_L, ahead + 3 * part, part)
                mix(share_T, prompted, 1, own_L, own + size, step, filled + 1, out_L, q, size)


@loop
def _take(
    heads_BXD: Any, cos_BD: Any, sin_BD: Any, scaling: Any, q_BHD: Any, own_BKTD: Any, filled: Any
) -> None:  # fmt: skip
    """The queries, scaled, and the keys, both turned, and the values as they are."""
    (rows, heads, size), keys = q_BHD.shape, own_BKTD.shape[1]
    for b in range(rows):
        for h in range(heads):
            turned(heads_BXD[b, h], cos_BD[b], sin_BD[b], np.float32(scaling), q_BHD[b, h])
        for k in range(keys):
            turned(heads_BXD[b, heads + k], cos_BD[b], sin_BD[b], np.float32(1), own_BKTD[b, k, filled, :size])
            copied(heads_BXD[b, heads + keys + k], own_BKTD[b, k, filled, size:])


@loop
def _fetch(x_L: Any, x: Any, count: Any) -> None:
    """Have so many numbers brought into the cache."""
    for i in range(x, x + count, _LINE // x_L.itemsize):
        fetch(x_L, (i,))


@loop
def _normalise(score_T: Any, tokens: Any) -> None:
    """The softmax of so many scores, in their place."""
    top, total = most(score_T, tokens), np.float32(0)
    for t in range(tokens):
        score_T[t] = exp(score_T[t] - top)
    for t in range(tokens):
        total += score_T[t]
    for t in range(tokens):
        score_T[t] /= total


@loop
def dots(x_L: Any, x: Any, size: Any, y_L: Any, y: Any, step: Any, count: Any, out_L: Any, out: Any) -> None:
    """The products of x with so many rows of y. Writes SIZE numbers at a time, so there has to be room behind the last.

    y may be bfloat16. Arrays as one line, and where in it something begins. step: from a row to the next.
    """
    if size == 64:  # a number that the compiler knows makes it half the time
        _dots(x_L, x, 64, y_L, y, step, count, out_L, out)
    elif size == 128:
        _dots(x_L, x, 128, y_L, y, step, count, out_L, out)
    else:
        _dots(x_L, x, size, y_L, y, step, count, out_L, out)


@inlined
def _dots(x_L: Any, x: Any, size: Any, y_L: Any, y: Any, step: Any, count: Any, out_L: Any, out: Any) -> None:
    for t in range(0, count, SIZE):
        a, zero = _four(x_L, x, size, y_L, y, step, t, count - 1), every(np.float32(0))
        b, c, d = zero, zero, zero
        if t + 4 < count:
            b = _four(x_L, x, size, y_L, y, step, t + 4, count - 1)
        if t + 8 < count:
            c = _four(x_L, x, size, y_L, y, step, t + 8, count - 1)
        if t + 12 < count:
            d = _four(x_L, x, size, y_L, y, step, t + 12, count - 1)
        store(out_L, (out + t,), totals(a, b, c, d))
    for i in range(size // SIZE * SIZE, size):
        for t in range(count):
            out_L[out + t] += x_L[x + i] * read(y_L[y + t * step + i])


@inlined
def _four(x_L: Any, x: Any, size: Any, y_L: Any, y: Any, step: Any, t: Any, last: Any) -> Any:
    """Four rows' quarters, of the last one over again if there are fewer."""
    y_t, y_u = y + t * step, y + min(t + 1, last) * step
    y_v, y_w = y + min(t + 2, last) * step, y + min(t + 3, last) * step
    zero = every(np.float32(0))
    a, b, c, d = zero, zero, zero, zero
    for i in range(0, size // SIZE * SIZE, SIZE):
        x_i = load(x_L, (x + i,))
        a = plus(a, x_i, load(y_L, (y_t + i,)))
        b = plus(b, x_i, load(y_L, (y_u + i,)))
        c = plus(c, x_i, load(y_L, (y_v + i,)))
        d = plus(d, x_i, load(y_L, (y_w + i,)))
    return quarters(a, b, c, d)


@loop
def mix(
    share_L: Any, share: Any, apart: Any, y_L: Any, y: Any, step: Any, count: Any, out_L: Any, out: Any, size: Any
) -> None:  # fmt: skip
    """Add so many rows of y, each by its share; shares are so far apart. What is added to is not in memory meanwhile.

    y may be bfloat16. Arrays as one line, and where in it something begins. step: from a row to the next.
    """
    wide, whole = size // (4 * SIZE) * (4 * SIZE), size // SIZE * SIZE
    for i in range(0, wide, 4 * SIZE):
        o = out + i
        a, b = load(out_L, (o,)), load(out_L, (o + SIZE,))
        c, d = load(out_L, (o + 2 * SIZE,)), load(out_L, (o + 3 * SIZE,))
        for t in range(count):
            part, y_t = every(share_L[share + t * apart]), y + t * step + i
            a = plus(a, part, load(y_L, (y_t,)))
            b = plus(b, part, load(y_L, (y_t + SIZE,)))
            c = plus(c, part, load(y_L, (y_t + 2 * SIZE,)))
            d = plus(d, part, load(y_L, (y_t + 3 * SIZE,)))
        store(out_L, (o,), a)
        store(out_L, (o + SIZE,), b)
        store(out_L, (o + 2 * SIZE,), c)
        store(out_L, (o + 3 * SIZE,), d)
    for i in range(wide, whole, SIZE):
        a = load(out_L, (out + i,))
        for t in range(count):
            a = plus(a, every(share_L[share + t * apart]), load(y_L, (y + t * step + i,)))
        store(out_L, (out + i,), a)
    for i in range(whole, size):
        for t in range(count):
            out_L[out + i] += share_L[share + t * apart] * read(y_L[y + t * step + i])


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
