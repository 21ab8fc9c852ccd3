"""What the CPU does between products, as loops that numba compiles (the extra ``fast``).

Of a rollout's few rows, because every product has emptied the processor's caches and starting one of PyTorch's
operators takes longer then than its work; of an update's many, because each loop is one pass over memory. Arrays are
float32 and int64. Letters: N rows of any input, B rows of a rollout, W hidden size, I between gate and down, E prompts,
T tokens at most; H query heads, K key heads, X = H + 2 K, D head dimension, V vocabulary, C blocks of it. A token's
keys lie beside its values: [T, K, 2 D].
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
import numpy as np

from coevolve.policies.sampling import BLOCK
from coevolve.policies.vectors import SIZE, every, fetch, load, plus, store, totals

_AHEAD = 16
"""Rows of weights between the one that is fetched and the one that is used."""

_QUERIES, _SEEN = 32, 64
"""Tokens of a segment that look at as many others at a time: few enough for a core's nearest cache."""


def _by_numba(fastmath: set[str]) -> Callable[[Callable[..., Any]], Any]:
    def compiled(function: Callable[..., Any]) -> Any:
        found = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
        with suppress(RuntimeError):  # there is no folder to keep it in: every process compiles
            found.enable_caching()
        return found

    return compiled


# Sums in any order, so that they use vectors. Numbers that are not finite stay what they are, and are reported. An
# array's row has a name of its own where it is written to: else numba takes no vectors either.
_loop = _by_numba({"reassoc", "contract", "nsz"})


@_loop
def layer(
    x_BW: Any, y_BW: Any, norms_W: Any, norm_AD: Any, epsilons: Any, weights_OI: Any, biases_O: Any, cos_BD: Any,
    sin_BD: Any, prompt_ETKD: Any, length_E: Any, prompt_B: Any, own_BTKD: Any, filled: Any, scaling: Any,
) -> None:  # fmt: skip
    """A layer of a decoder of Llama's kind, for one token of a few rows. What comes in is the sum of x and y, and so is
    what goes out.

    norm_AD: of queries and keys, none if empty. epsilons: of the norms of the layer, of its second half, and of heads.
    weights_OI, biases_O: of queries, keys, values, output, gate, up, down. The others are ``attend``'s.
    """
    rows, width, size = len(x_BW), len(weights_OI[0]), len(cos_BD[0])
    both = width + len(weights_OI[1])
    normed_BW, scale_B = np.empty_like(x_BW), np.empty(rows, np.float32)
    heads_BO = np.empty((rows, both + len(weights_OI[2])), np.float32)
    attended_BO = np.empty((rows, width), np.float32)
    gate_BI = np.empty((rows, len(weights_OI[4])), np.float32)
    up_BI = np.empty_like(gate_BI)
    added(x_BW, y_BW, norms_W[0], epsilons[0], x_BW, scale_B, normed_BW)
    product(normed_BW, weights_OI[0], biases_O[0], heads_BO, 0)
    product(normed_BW, weights_OI[1], biases_O[1], heads_BO, width)
    product(normed_BW, weights_OI[2], biases_O[2], heads_BO, both)
    heads_BXD, attended_BHD = heads_BO.reshape((rows, -1, size)), attended_BO.reshape((rows, -1, size))
    _norm_heads(heads_BXD, norm_AD, epsilons[2])
    seen = (prompt_ETKD, length_E, prompt_B, own_BTKD)
    attend(heads_BXD, cos_BD, sin_BD, *seen, filled, scaling, attended_BHD)
    product(attended_BO, weights_OI[3], biases_O[3], y_BW, 0)
    added(x_BW, y_BW, norms_W[1], epsilons[1], x_BW, scale_B, normed_BW)
    product(normed_BW, weights_OI[4], biases_O[4], gate_BI, 0)
    product(normed_BW, weights_OI[5], biases_O[5], up_BI, 0)
    gated_apart(gate_BI, up_BI, gate_BI)
    product(gate_BI, weights_OI[6], biases_O[6], y_BW, 0)


@_loop
def _norm_heads(heads_BXD: Any, weight_AD: Any, epsilon: Any) -> None:
    """The first heads become their RMSNorm."""
    for b in range(len(heads_BXD)):
        for a in range(len(weight_AD)):
            x_D, weight_D, squares = heads_BXD[b, a], weight_AD[a], np.float32(0)
            for d in range(len(x_D)):
                squares += x_D[d] * x_D[d]
            scale = np.float32(1 / np.sqrt(squares / len(x_D) + epsilon))
            for d in range(len(x_D)):
                x_D[d] *= weight_D[d] * scale


@_loop
def product(x_NI: Any, weight_OI: Any, bias_O: Any, out_NX: Any, at: Any) -> None:
    """x W' + b of few rows, into out from column ``at`` on. The weights come from memory once, fetched ahead."""
    (outputs, inputs), rows = weight_OI.shape, len(x_NI)
    x_L, weight_L, sums_N = x_NI.reshape(-1), weight_OI.reshape(-1), np.empty(rows, np.float32)
    for o in range(outputs):
        for i in range(0, inputs, SIZE):
            fetch(weight_OI, (min(o + _AHEAD, outputs - 1), i))
        _dots(weight_L, o * inputs, inputs, x_L, 0, inputs, rows, sums_N, 0)
        for n in range(rows):
            out_NX[n, at + o] = sums_N[n] + bias_O[o]


@_loop
def added(x_NW: Any, y_NW: Any, weight_W: Any, epsilon: Any, sum_NW: Any, scale_N: Any, out_NW: Any) -> None:
    """x + y, its RMSNorm (arXiv 1910.07467), and what each row was divided by for that, as a factor."""
    rows, width = x_NW.shape
    for n in range(rows):
        x_W, y_W, sum_W, out_W = x_NW[n], y_NW[n], sum_NW[n], out_NW[n]
        squares = np.float32(0)
        for w in range(width):
            sum_W[w] = x_W[w] + y_W[w]
        for w in range(width):
            squares += sum_W[w] * sum_W[w]
        scale = np.float32(1 / np.sqrt(squares / width + epsilon))
        scale_N[n] = scale
        for w in range(width):
            out_W[w] = weight_W[w] * (sum_W[w] * scale)


@_loop
def added_gradient(
    grad_sum_NW: Any, grad_out_NW: Any, sum_NW: Any, weight_W: Any, scale_N: Any, grad_NW: Any, grad_W: Any
) -> None:
    """The gradient of x, which is also that of y, and the weight's, which is added."""
    rows, width = sum_NW.shape
    for n in range(rows):
        past_W, out_W, sum_W, grad_x_W = grad_sum_NW[n], grad_out_NW[n], sum_NW[n], grad_NW[n]
        scale, inner = scale_N[n], np.float32(0)
        for w in range(width):
            inner += out_W[w] * weight_W[w] * sum_W[w]
        inner *= scale * scale * scale / np.float32(width)
        for w in range(width):
            grad_x_W[w] = past_W[w] + scale * out_W[w] * weight_W[w] - inner * sum_W[w]
        for w in range(width):
            grad_W[w] += out_W[w] * sum_W[w] * scale


@_loop
def gated(both_NI: Any, out_NI: Any) -> None:
    """silu(gate) up, of gate and up side by side."""
    rows, width = out_NI.shape
    for n in range(rows):
        _gate(both_NI[n, :width], both_NI[n, width:], out_NI[n])


@_loop
def gated_apart(gate_NI: Any, up_NI: Any, out_NI: Any) -> None:
    """silu(gate) up."""
    for n in range(len(out_NI)):
        _gate(gate_NI[n], up_NI[n], out_NI[n])


@_loop
def _gate(gate_I: Any, up_I: Any, out_I: Any) -> None:
    for i in range(len(out_I)):
        out_I[i] = gate_I[i] * _sigmoid(gate_I[i]) * up_I[i]


@_loop
def gate_gradient(grad_NI: Any, gate_NI: Any, up_NI: Any, grad_gate_NI: Any, grad_up_NI: Any) -> None:
    """The gradients of gate and up."""
    rows, width = grad_NI.shape
    for n in range(rows):
        grad_I, gate_I, up_I = grad_NI[n], gate_NI[n], up_NI[n]
        grad_gate_I, grad_up_I = grad_gate_NI[n], grad_up_NI[n]
        for i in range(width):
            share = _sigmoid(gate_I[i])
            grad_up_I[i] = grad_I[i] * gate_I[i] * share
            grad_gate_I[i] = grad_I[i] * up_I[i] * share * (np.float32(1) + gate_I[i] * (np.float32(1) - share))


@_loop
def turn(x_NHD: Any, cos_ND: Any, sin_ND: Any, out_NHD: Any) -> None:
    """Heads turned by halves (arXiv 2104.09864)."""
    rows, heads, _ = x_NHD.shape
    for n in range(rows):
        for h in range(heads):
            _turn(x_NHD[n, h], cos_ND[n], sin_ND[n], np.float32(1), out_NHD[n, h])


@_loop
def _turn(x_D: Any, cos_D: Any, sin_D: Any, factor: Any, out_D: Any) -> None:
    half = len(x_D) // 2
    for d in range(half):
        out_D[d] = factor * (x_D[d] * cos_D[d] - x_D[half + d] * sin_D[d])
    for d in range(half):
        out_D[half + d] = factor * (x_D[half + d] * cos_D[half + d] + x_D[d] * sin_D[half + d])
    for d in range(2 * half, len(x_D)):  # of models that do not turn
        out_D[d] = factor * x_D[d]


@_loop
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
            _dots(q_L, h * size, size, prompt_L, prompt + k, step, prompted, share_L, share)
            _dots(q_L, h * size, size, own_L, own + k, step, filled + 1, share_L, share + prompted)
        _normalise(share_HT, prompted + filled + 1)
        for h in range(heads):
            k, share, out = (h // (heads // keys) * 2 + 1) * size, h * (longest + room), (b * heads + h) * size
            _mix(share_L, share, 1, prompt_L, prompt + k, step, prompted, out_L, out, size)
            _mix(share_L, share + prompted, 1, own_L, own + k, step, filled + 1, out_L, out, size)


@_loop
def _take(x_XD: Any, cos_D: Any, sin_D: Any, scaling: Any, q_HD: Any, own_KD: Any) -> None:
    """The queries, scaled, and the keys, both turned, and the values as they are."""
    heads, size = q_HD.shape
    keys = len(own_KD)
    for h in range(heads):
        _turn(x_XD[h], cos_D, sin_D, np.float32(scaling), q_HD[h])
    for k in range(keys):
        _turn(x_XD[heads + k], cos_D, sin_D, np.float32(1), own_KD[k])
    own_KD[:, size:] = x_XD[heads + keys :]


@_loop
def _dots(x_L: Any, x: Any, size: Any, y_L: Any, y: Any, step: Any, count: Any, out_L: Any, out: Any) -> None:
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


@_loop
def _normalise(score_HT: Any, tokens: Any) -> None:
    """The softmax of every head's scores, in their place."""
    for h in range(len(score_HT)):
        score_T = score_HT[h]
        top, total = _most(score_T, tokens), np.float32(0)
        for t in range(tokens):
            score_T[t] = _exp(score_T[t] - top)
        for t in range(tokens):
            total += score_T[t]
        for t in range(tokens):
            score_T[t] /= total


@_loop
def _mix(
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


@_loop
def walk(
    q_L: Any, k_L: Any, v_L: Any, shape: Any, place_S: Any, count_S: Any, parent_S: Any, scaling: Any, out_L: Any,
    lse_NH: Any,
) -> None:  # fmt: skip
    """Attention over a forest, [N, H, D] over [N, K, D], and the log-sum-exp of the scores. shape: (H, K, D).

    Some queries of a segment at a time. What they see is numbered from their own segment's beginning, then come its
    parent's tokens, and so on.
    """
    (heads, keys, size), segments = shape, (place_S, count_S, parent_S)
    share_IT = np.empty((_QUERIES, len(lse_NH)), np.float32)
    share_L = share_IT.reshape(-1)
    for s in range(len(place_S)):
        end = place_S[s] + count_S[s]
        for h in range(heads):
            q, k = (h * size, heads * size, size), (h // (heads // keys) * size, keys * size, size)
            for first in range(place_S[s], end, _QUERIES):
                last = min(first + _QUERIES, end)
                tokens = _products(q_L, q, k_L, k, s, first, last, *segments, share_L, len(lse_NH))
                for n in range(first, last):
                    share_T, own = share_IT[n - first], n + 1 - place_S[s]
                    _hide(share_T, own, last - place_S[s], share_T[0])
                    top, sum = _most(share_T, tokens), np.float32(0)
                    for t in range(tokens):
                        share_T[t] = _exp(scaling * (share_T[t] - top))
                    _hide(share_T, own, last - place_S[s], np.float32(0))
                    for t in range(tokens):
                        sum += share_T[t]
                    for t in range(tokens):
                        share_T[t] /= sum
                    lse_NH[n, h] = scaling * top + np.log(sum)
                _mixes(share_L, len(lse_NH), v_L, k, s, first, last, *segments, out_L, q)


@_loop
def walk_gradient(
    grad_L: Any, q_L: Any, k_L: Any, v_L: Any, lse_NH: Any, shape: Any, place_S: Any, count_S: Any, parent_S: Any,
    scaling: Any, grad_q_L: Any, grad_k_L: Any, grad_v_L: Any,
) -> None:  # fmt: skip
    """The gradients of queries, keys and values, which are added (FlashAttention, arXiv 2205.14135, appendix B.4)."""
    (heads, keys, size), segments, width = shape, (place_S, count_S, parent_S), len(lse_NH)
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
                        share_T[t] = _exp(scaling * share_T[t] - lse)
                    _hide(share_T, n + 1 - place_S[s], last - place_S[s], np.float32(0))
                    for t in range(tokens):
                        inner += share_T[t] * slope_T[t]
                    for t in range(tokens):
                        slope_T[t] = scaling * share_T[t] * (slope_T[t] - inner)
                _mixes(slope_L, width, k_L, k, s, first, last, *segments, grad_q_L, q)
                _mixes_back(slope_L, width, q_L, q, s, first, last, *segments, grad_k_L, k)
                _mixes_back(share_L, width, grad_L, q, s, first, last, *segments, grad_v_L, k)


@_loop
def _hide(x_T: Any, first: Any, last: Any, number: Any) -> None:
    """Put a number where a query looks at tokens of its segment that come later."""
    for t in range(first, last):
        x_T[t] = number


# Arrays as one line from here on; of one head's tokens, where the first begins, from one to the next, and their size.
@_loop
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
                _dots(x_L, x[0] + n * x[1], x[2], y_L, seen, y[1], min(_SEEN, count - t), out_L, out)
        before, a = before + count, parent_S[a]
    return before


@_loop
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
                _mix(share_L, share, 1, y_L, seen, y[1], min(_SEEN, count - t), out_L, to, out[2])
        before, a = before + count, parent_S[a]


@_loop
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
            _mix(share_L, before + t, width, x_L, x[0] + first * x[1], x[1], last - first, out_L, to, out[2])
        before, a = before + count, parent_S[a]


@_loop
def draw(logits_BV: Any, temperature: Any, uniform_B: Any, token_B: Any, logp_B: Any) -> None:
    """Of every row the first token whose cumulative mass exceeds uniform times the total, and its log-probability."""
    tokens = logits_BV.shape[1]
    mass_V, block_C = np.empty(tokens, np.float32), np.empty(-(-tokens // BLOCK), np.float64)
    for b in range(len(logits_BV)):
        row_V = logits_BV[b]
        top = _most(row_V, tokens)
        for v in range(tokens):
            x = (row_V[v] - top) / temperature
            mass_V[v] = np.float32(0) if x < -87 else _exp(x)
        total = _sums(mass_V, block_C)
        token_B[b] = _first(mass_V, block_C, uniform_B[b] * total)
        logp_B[b] = (row_V[token_B[b]] - top) / temperature - np.float32(np.log(total))


@_loop
def _sums(mass_V: Any, block_C: Any) -> Any:
    """The mass of every block, and their sum: float32 would lose the tail of a large vocabulary."""
    total = np.float64(0)
    for c in range(len(block_C)):
        block = np.float32(0)
        for v in range(c * BLOCK, min(c * BLOCK + BLOCK, len(mass_V))):
            block += mass_V[v]
        block_C[c] = block
        total += block_C[c]
    return total


@_loop
def _first(mass_V: Any, block_C: Any, target: Any) -> Any:
    """The first token whose cumulative mass exceeds the target; the last of its block that has mass, if rounding leaves
    none; anything if the masses are not finite."""
    before, last = np.float64(0), 0
    for c in range(len(block_C)):
        if before + block_C[c] > target or c == len(block_C) - 1:
            inside = before
            for v in range(c * BLOCK, min(c * BLOCK + BLOCK, len(mass_V))):
                inside += mass_V[v]
                if mass_V[v] > 0:
                    last = v
                    if inside > target:
                        return v
            if before + block_C[c] > target:
                return last
        before += block_C[c]
    return last


# The largest of some vectorises only where no number is NaN; such a row has no finite sum whatever is taken here.
@_by_numba({"reassoc", "nnan", "nsz"})
def _most(x_T: Any, count: Any) -> Any:
    top = x_T[0]
    for t in range(count):
        top = max(top, x_T[t])
    return top


@numba.njit(inline="always", error_model="numpy", fastmath={"contract"})
def _sigmoid(x: Any) -> Any:
    small = _exp(-abs(x))
    return (np.float32(1) if x >= 0 else small) / (np.float32(1) + small)


@numba.njit(inline="always", fastmath={"contract"})
def _exp(x: Any) -> Any:
    """e to the x <= 0, to the last bit but one (in vectors, which numba's own takes none of).

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
