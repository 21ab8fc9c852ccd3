"""Attention of a rollout's new tokens, and of packed tokens over a tree with its gradient.

A packed token attends to its own segment up to itself and to the segments of its path, in place.

Letters: B rows, E prompts, N packed tokens, S segments (the first token of each, its number of tokens, and its parent,
negative for none), I queries at a time, T tokens attended to, at most, H query heads, K key heads, X = H + 2 K, D head
dimension, L a flat array. In a rollout a token's key and value are side by side: [K, T, 2 D].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coevolve.compute.cpu.loops.between import copied, turned
from coevolve.compute.cpu.loops.loop import exp, inlined, loop, loop_with_arrays, most
from coevolve.compute.cpu.loops.vectors import SIZE, every, fetch, load, plus, quarters, read, store, totals

_LINE = 64
"""Bytes of a cache line."""


@loop_with_arrays
def attend(
    heads_BXD: Any, cos_BD: Any, sin_BD: Any, prompt_EKTD: Any, length_E: Any, prompt_B: Any, own_BKTD: Any,
    filled: Any, scaling: Any, out_BHD: Any,
) -> None:  # fmt: skip
    """Write the attention of one new token per row over the row's prompt and its own tokens. The token's key and value
    are added to the own tokens as number ``filled``.

    heads_BXD: queries, keys and values, not rotated. These and own tokens may be bfloat16. length_E: the prompts'
    lengths; prompt_B: each row's prompt. A head's keys of one prompt serve all its rows from the nearest cache; the
    next row's own keys and values are prefetched meanwhile (for the last row, whatever memory follows).
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
    """Write the queries, rotated and scaled, and the rotated keys and the values of the new tokens."""
    (rows, heads, size), keys = q_BHD.shape, own_BKTD.shape[1]
    for b in range(rows):
        for h in range(heads):
            turned(heads_BXD[b, h], cos_BD[b], sin_BD[b], np.float32(scaling), q_BHD[b, h])
        for k in range(keys):
            turned(heads_BXD[b, heads + k], cos_BD[b], sin_BD[b], np.float32(1), own_BKTD[b, k, filled, :size])
            copied(heads_BXD[b, heads + keys + k], own_BKTD[b, k, filled, size:])


@loop
def _fetch(x_L: Any, x: Any, count: Any) -> None:
    """Prefetch ``count`` numbers into the cache."""
    for i in range(x, x + count, _LINE // x_L.itemsize):
        fetch(x_L, (i,))


@loop
def _normalise(score_T: Any, tokens: Any) -> None:
    """Replace ``tokens`` scores by their softmax."""
    top, total = most(score_T, tokens), np.float32(0)
    for t in range(tokens):
        score_T[t] = exp(score_T[t] - top)
    for t in range(tokens):
        total += score_T[t]
    for t in range(tokens):
        score_T[t] /= total


@loop
def dots(x_L: Any, x: Any, size: Any, y_L: Any, y: Any, step: Any, count: Any, out_L: Any, out: Any) -> None:
    """Write the dot products of x with ``count`` rows of y, SIZE numbers at a time: out needs room behind the last one.

    y may be bfloat16. Arrays are flat, each with the index of its first number. step: the distance between rows.
    """
    if size == 64:  # a size known to the compiler halves the time
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
    """Return partial dot products of four rows (``quarters``); the last row is repeated if there are fewer."""
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
    """Add ``count`` rows of y to out, each times its share, with the sums in registers. apart: between shares.

    y may be bfloat16. Arrays are flat, each with the index of its first number. step: the distance between rows.
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
"""Queries of a segment and keys that are processed at a time: few enough for a core's nearest cache."""


@loop_with_arrays
def walk(
    q_L: Any, k_L: Any, v_L: Any, shape: Any, place_S: Any, count_S: Any, parent_S: Any, scaling: Any, out_L: Any,
    lse_NH: Any, start: Any, stop: Any,
) -> None:  # fmt: skip
    """Add the attention over a forest, [N, H, D] over [N, K, D], to out, which starts at 0; write the log-sum-exp of
    scores. Of the query heads that share the key heads from ``start`` to ``stop``. shape: (H, K, D).

    Some queries of a segment are processed at a time. The tokens that they attend to are numbered from the start of
    their own segment; its parent's tokens follow, and so on.
    """
    (heads, keys, size), segments = shape, (place_S, count_S, parent_S)
    width = len(lse_NH) + SIZE
    share_IT = np.empty((_QUERIES, width), np.float32)
    share_L = share_IT.reshape(-1)
    for s in range(len(place_S)):
        end = place_S[s] + count_S[s]
        for h in range(start * (heads // keys), stop * (heads // keys)):
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
    scaling: Any, grad_q_L: Any, grad_k_L: Any, grad_v_L: Any, start: Any, stop: Any,
) -> None:  # fmt: skip
    """Add the gradients of queries, keys and values (FlashAttention, arXiv 2205.14135, appendix B.4), of the heads that
    ``walk`` takes."""
    (heads, keys, size), segments, width = shape, (place_S, count_S, parent_S), len(lse_NH) + SIZE
    share_IT, slope_IT = np.empty((_QUERIES, width), np.float32), np.empty((_QUERIES, width), np.float32)
    share_L, slope_L = share_IT.reshape(-1), slope_IT.reshape(-1)
    for s in range(len(place_S)):
        end = place_S[s] + count_S[s]
        for h in range(start * (heads // keys), stop * (heads // keys)):
            q, k = (h * size, heads * size, size), (h // (heads // keys) * size, keys * size, size)
            for first in range(place_S[s], end, _QUERIES):
                last = min(first + _QUERIES, end)
                tokens = _products(q_L, q, k_L, k, s, first, last, *segments, share_L, width)
                _products(grad_L, q, v_L, k, s, first, last, *segments, slope_L, width)
                for n in range(first, last):
                    share_T, slope_T, inner, lse = share_IT[n - first], slope_IT[n - first], np.float32(0), lse_NH[n, h]
                    for t in range(tokens):
                        share_T[t] = exp(scaling * share_T[t] - lse)  # any number for later tokens, hidden next
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
    """Set the entries of a query's later tokens in its segment to a number (the causal mask)."""
    for t in range(first, last):
        x_T[t] = number


# x, y and out, of one head's tokens: the index of the first in the flat array, the distance between two, the size.
@loop
def _products(
    x_L: Any, x: Any, y_L: Any, y: Any, s: Any, first: Any, last: Any, place_S: Any, count_S: Any, parent_S: Any,
    out_L: Any, width: Any,
) -> Any:  # fmt: skip
    """Write the dot products of x's tokens ``first`` to ``last`` of segment s with all tokens that they attend to, in
    blocks that stay in the cache; return the number of these tokens."""
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
    """Add all tokens of y that tokens ``first`` to ``last`` of segment s attend to, each times its share, to out."""
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
    """Add tokens ``first`` to ``last`` of x, times the same shares, to every token that they attend to."""
    before, a = 0, s
    while a >= 0:
        count = last - place_S[a] if a == s else count_S[a]
        for t in range(count):
            to = out[0] + (place_S[a] + t) * out[1]
            mix(share_L, before + t, width, x_L, x[0] + first * x[1], x[1], last - first, out_L, to, out[2])
        before, a = before + count, parent_S[a]
