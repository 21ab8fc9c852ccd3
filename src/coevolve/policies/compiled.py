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
from coevolve.policies.vectors import SIZE, every, fetch, load, plus, store, total

_AHEAD = 16
"""Rows of weights between the one that is fetched and the one that is used."""


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
    product(normed_BW, weights_OI[0], biases_O[0], heads_BO[:, :width])
    product(normed_BW, weights_OI[1], biases_O[1], heads_BO[:, width:both])
    product(normed_BW, weights_OI[2], biases_O[2], heads_BO[:, both:])
    heads_BXD, attended_BHD = heads_BO.reshape((rows, -1, size)), attended_BO.reshape((rows, -1, size))
    _norm_heads(heads_BXD, norm_AD, epsilons[2])
    seen = (prompt_ETKD, length_E, prompt_B, own_BTKD)
    attend(heads_BXD, cos_BD, sin_BD, *seen, filled, scaling, attended_BHD)
    product(attended_BO, weights_OI[3], biases_O[3], y_BW)
    added(x_BW, y_BW, norms_W[1], epsilons[1], x_BW, scale_B, normed_BW)
    product(normed_BW, weights_OI[4], biases_O[4], gate_BI)
    product(normed_BW, weights_OI[5], biases_O[5], up_BI)
    gated_apart(gate_BI, up_BI, gate_BI)
    product(gate_BI, weights_OI[6], biases_O[6], y_BW)


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
def product(x_NI: Any, weight_OI: Any, bias_O: Any, out_NO: Any) -> None:
    """x W' + b, for few rows: the weights come from memory once, fetched ahead, and four rows at a time use them."""
    outputs, inputs = weight_OI.shape
    for o in range(outputs):
        for i in range(0, inputs, SIZE):
            fetch(weight_OI, (min(o + _AHEAD, outputs - 1), i))
        for n in range(0, len(x_NI), 4):
            _four(x_NI, n, weight_OI[o], bias_O[o], out_NO[:, o])


@_loop
def _four(x_NI: Any, n: Any, weight_I: Any, bias: Any, out_N: Any) -> None:
    """One output of the four rows from n on, or of those that there are."""
    if n + 4 <= len(x_NI):
        a_I, b_I, c_I, d_I = x_NI[n], x_NI[n + 1], x_NI[n + 2], x_NI[n + 3]
        a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for i in range(len(weight_I)):
            a += a_I[i] * weight_I[i]
            b += b_I[i] * weight_I[i]
            c += c_I[i] * weight_I[i]
            d += d_I[i] * weight_I[i]
        out_N[n], out_N[n + 1], out_N[n + 2], out_N[n + 3] = a + bias, b + bias, c + bias, d + bias
        return
    for m in range(n, len(x_NI)):
        x_I, a = x_NI[m], np.float32(0)
        for i in range(len(weight_I)):
            a += x_I[i] * weight_I[i]
        out_N[m] = a + bias


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
    _, heads, size = out_BHD.shape
    q_HD = np.empty((heads, size), np.float32)
    share_HT = np.empty((heads, prompt_ETKD.shape[1] + own_BTKD.shape[1]), np.float32)
    for b in range(len(prompt_B)):
        _take(heads_BXD[b], cos_BD[b], sin_BD[b], scaling, q_HD, own_BTKD[b, filled])
        prompt_TKD, prompted = prompt_ETKD[prompt_B[b]], length_E[prompt_B[b]]
        _score(q_HD, prompt_TKD, prompted, share_HT, 0)
        _score(q_HD, own_BTKD[b], filled + 1, share_HT, prompted)
        _normalise(share_HT, prompted + filled + 1)
        out_BHD[b] = 0
        _add(share_HT, 0, prompt_TKD, prompted, out_BHD[b])
        _add(share_HT, prompted, own_BTKD[b], filled + 1, out_BHD[b])


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
def _score(q_HD: Any, seen_TKD: Any, tokens: Any, score_HT: Any, first: Any) -> None:
    """The queries times these tokens' keys, from place ``first`` on; four tokens at a time, the last one over again
    where there are fewer."""
    heads, size = q_HD.shape
    ratio, whole = heads // seen_TKD.shape[1], size // SIZE * SIZE
    for t in range(0, tokens, 4):
        u, v, w = min(t + 1, tokens - 1), min(t + 2, tokens - 1), min(t + 3, tokens - 1)
        for h in range(heads):
            k, zero = h // ratio, every(np.float32(0))
            a, b, c, d = zero, zero, zero, zero
            for i in range(0, whole, SIZE):
                q = load(q_HD, (h, i))
                a = plus(a, q, load(seen_TKD, (t, k, i)))
                b = plus(b, q, load(seen_TKD, (u, k, i)))
                c = plus(c, q, load(seen_TKD, (v, k, i)))
                d = plus(d, q, load(seen_TKD, (w, k, i)))
            sums = (total(a), total(b), total(c), total(d))
            for n in range(min(4, tokens - t)):
                score = sums[n]
                for i in range(whole, size):
                    score += q_HD[h, i] * seen_TKD[t + n, k, i]
                score_HT[h, first + t + n] = score


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
def _add(share_HT: Any, first: Any, seen_TKD: Any, tokens: Any, out_HD: Any) -> None:
    """Add these tokens' values, each head's by its shares."""
    heads, size = out_HD.shape
    ratio, wide, whole = heads // seen_TKD.shape[1], size // (4 * SIZE) * (4 * SIZE), size // SIZE * SIZE
    for h in range(heads):
        k, out_D = h // ratio, out_HD[h]
        for i in range(0, wide, 4 * SIZE):
            a, b, c, d = load(out_D, (i,)), load(out_D, (i + 16,)), load(out_D, (i + 32,)), load(out_D, (i + 48,))
            for t in range(tokens):
                share, at = every(share_HT[h, first + t]), size + i
                a = plus(a, share, load(seen_TKD, (t, k, at)))
                b = plus(b, share, load(seen_TKD, (t, k, at + 16)))
                c = plus(c, share, load(seen_TKD, (t, k, at + 32)))
                d = plus(d, share, load(seen_TKD, (t, k, at + 48)))
            store(out_D, (i,), a)
            store(out_D, (i + 16,), b)
            store(out_D, (i + 32,), c)
            store(out_D, (i + 48,), d)
        for i in range(wide, whole, SIZE):
            a = load(out_D, (i,))
            for t in range(tokens):
                a = plus(a, every(share_HT[h, first + t]), load(seen_TKD, (t, k, size + i)))
            store(out_D, (i,), a)
        for i in range(whole, size):
            for t in range(tokens):
                out_D[i] += share_HT[h, first + t] * seen_TKD[t, k, size + i]


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
