"""Attention of a rollout's new tokens, and the two loops that all attention is made of.

Letters: B rows, E prompts, T tokens at most, H query heads, K key heads, X = H + 2 K, D head dimension, L an array as
one line. A token's keys lie beside its values: [T, K, 2 D].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coevolve.policies.compiled.between import turned
from coevolve.policies.compiled.loop import exp, loop, most
from coevolve.policies.compiled.vectors import SIZE, every, load, plus, store, totals


@loop
def attend(
    heads_BXD: Any, cos_BD: Any, sin_BD: Any, prompt_ETKD: Any, length_E: Any, prompt_B: Any, own_BTKD: Any,
    filled: Any, scaling: Any, out_BHD: Any,
) -> None:  # fmt: skip
    """Attention of one token a row over the row's prompt and its own tokens, which it joins as number ``filled``.

    heads_BXD: queries, keys and values, none of them turned. length_E: tokens of the prompts; prompt_B: which one is
    each row's.
    """
    (rows, heads, size), keys, room = out_BHD.shape, own_BTKD.shape[2], own_BTKD.shape[1]
    step, longest = 2 * keys * size, prompt_ETKD.shape[1]
    q_HD, share_HT = np.empty((heads, size), np.float32), np.empty((heads, longest + room), np.float32)
    prompt_L, own_L, out_L = prompt_ETKD.reshape(-1), own_BTKD.reshape(-1), out_BHD.reshape(-1)
    q_L, share_L = q_HD.reshape(-1), share_HT.reshape(-1)
    out_L[:] = 0
    for b in range(rows):
        _take(heads_BXD[b], cos_BD[b], sin_BD[b], scaling, q_HD, own_BTKD[b, filled])
        prompted, prompt, own = length_E[prompt_B[b]], prompt_B[b] * longest * step, b * room * step
        for h in range(heads):
            k, share = h // (heads // keys) * 2 * size, h * (longest + room)
            dots(q_L, h * size, size, prompt_L, prompt + k, step, prompted, share_L, share)
            dots(q_L, h * size, size, own_L, own + k, step, filled + 1, share_L, share + prompted)
        _normalise(share_HT, prompted + filled + 1)
        for h in range(heads):
            k, share, out = (h // (heads // keys) * 2 + 1) * size, h * (longest + room), (b * heads + h) * size
            mix(share_L, share, 1, prompt_L, prompt + k, step, prompted, out_L, out, size)
            mix(share_L, share + prompted, 1, own_L, own + k, step, filled + 1, out_L, out, size)


@loop
def _take(x_XD: Any, cos_D: Any, sin_D: Any, scaling: Any, q_HD: Any, own_KD: Any) -> None:
    """The queries, scaled, and the keys, both turned, and the values as they are."""
    heads, size = q_HD.shape
    keys = len(own_KD)
    for h in range(heads):
        turned(x_XD[h], cos_D, sin_D, np.float32(scaling), q_HD[h])
    for k in range(keys):
        turned(x_XD[heads + k], cos_D, sin_D, np.float32(1), own_KD[k])
    own_KD[:, size:] = x_XD[heads + keys :]


@loop
def _normalise(score_HT: Any, tokens: Any) -> None:
    """The softmax of every head's scores, in their place."""
    for h in range(len(score_HT)):
        score_T = score_HT[h]
        top, total = most(score_T, tokens), np.float32(0)
        for t in range(tokens):
            score_T[t] = exp(score_T[t] - top)
        for t in range(tokens):
            total += score_T[t]
        for t in range(tokens):
            score_T[t] /= total


@loop
def dots(x_L: Any, x: Any, size: Any, y_L: Any, y: Any, step: Any, count: Any, out_L: Any, out: Any) -> None:
    """The products of x with so many rows of y, four rows at a time, the last one over again if there are fewer.

    Arrays as one line, and where in it something begins. step: from a row to the next.
    """
    whole = size // SIZE * SIZE
    for t in range(0, count, 4):
        u, v, w = min(t + 1, count - 1), min(t + 2, count - 1), min(t + 3, count - 1)
        y_t, y_u, y_v, y_w = y + t * step, y + u * step, y + v * step, y + w * step
        zero = every(np.float32(0))
        a, b, c, d = zero, zero, zero, zero
        for i in range(0, whole, SIZE):
            x_i = load(x_L, (x + i,))
            a = plus(a, x_i, load(y_L, (y_t + i,)))
            b = plus(b, x_i, load(y_L, (y_u + i,)))
            c = plus(c, x_i, load(y_L, (y_v + i,)))
            d = plus(d, x_i, load(y_L, (y_w + i,)))
        out_L[out + t], out_L[out + u], out_L[out + v], out_L[out + w] = totals(a, b, c, d)
    for i in range(whole, size):
        for t in range(count):
            out_L[out + t] += x_L[x + i] * y_L[y + t * step + i]


@loop
def mix(
    share_L: Any, share: Any, apart: Any, y_L: Any, y: Any, step: Any, count: Any, out_L: Any, out: Any, size: Any
) -> None:  # fmt: skip
    """Add so many rows of y, each by its share; shares are so far apart. What is added to is not in memory meanwhile.

    Arrays as one line, and where in it something begins. step: from a row to the next.
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
            out_L[out + i] += share_L[share + t * apart] * y_L[y + t * step + i]
