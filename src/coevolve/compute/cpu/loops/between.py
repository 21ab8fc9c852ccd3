"""Loops between matrix products: norms, gates and rotations, and their gradients, each in one pass over memory.

Inputs and outputs of products, and their gradients, may be bfloat16 (``vectors``); the rest is float32. Letters: N
rows, W hidden size, I size between gate and down, H query heads, K key heads, X = H + 2 K, D head dimension.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from coevolve.compute.cpu.loops.loop import exp, loop, loop_with_arrays
from coevolve.compute.cpu.loops.vectors import SIZE, every, kept, load, plus, read, store, times


@loop
def added(x_NW: Any, y_NW: Any, weight_W: Any, epsilon: Any, sum_NW: Any, scale_N: Any, out_NW: Any) -> None:
    """Write x + y, its RMSNorm (arXiv 1910.07467), and the factor by which each row was scaled for it."""
    rows, width = x_NW.shape
    for n in range(rows):
        x_W, y_W, sum_W, out_W = x_NW[n], y_NW[n], sum_NW[n], out_NW[n]
        squares = np.float32(0)
        for w in range(width):
            sum_W[w] = x_W[w] + read(y_W[w])
        for w in range(width):
            squares += sum_W[w] * sum_W[w]
        scale = np.float32(1 / np.sqrt(squares / width + epsilon))
        scale_N[n] = scale
        for w in range(width):
            out_W[w] = kept(out_W, weight_W[w] * (sum_W[w] * scale))


@loop
def added_gradient(
    grad_sum_NW: Any, grad_out_NW: Any, sum_NW: Any, weight_W: Any, scale_N: Any, grad_x_NW: Any, grad_y_NW: Any,
    grad_W: Any,
) -> None:  # fmt: skip
    """Write the gradient of x, which is also that of y (they may be one array), and add the weight's to ``grad_W``."""
    rows, width = sum_NW.shape
    for n in range(rows):
        past_W, out_W, sum_W, grad_x_W, grad_y_W = (
            grad_sum_NW[n], grad_out_NW[n], sum_NW[n], grad_x_NW[n], grad_y_NW[n]
        )  # fmt: skip
        scale, inner = scale_N[n], np.float32(0)
        for w in range(width):
            inner += read(out_W[w]) * weight_W[w] * sum_W[w]
        inner *= scale * scale * scale / np.float32(width)
        for w in range(width):
            grad_x_W[w] = past_W[w] + scale * read(out_W[w]) * weight_W[w] - inner * sum_W[w]
        for w in range(width):
            grad_W[w] += read(out_W[w]) * sum_W[w] * scale
        for w in range(width):
            grad_y_W[w] = kept(grad_y_W, grad_x_W[w])


@loop
def gated(both_NI: Any, out_NI: Any) -> None:
    """Write silu(gate) * up, of gate and up side by side."""
    rows, width = out_NI.shape
    for n in range(rows):
        gate_I, up_I, out_I = both_NI[n, :width], both_NI[n, width:], out_NI[n]
        for i in range(width):
            gate = read(gate_I[i])
            out_I[i] = kept(out_I, gate * _sigmoid(gate) * read(up_I[i]))


@loop
def gate_gradient(grad_NI: Any, both_NI: Any, grad_both_NI: Any) -> None:
    """Write the gradients of gate and up, side by side."""
    rows, width = grad_NI.shape
    for n in range(rows):
        grad_I, gate_I, up_I = grad_NI[n], both_NI[n, :width], both_NI[n, width:]
        grad_gate_I, grad_up_I = grad_both_NI[n, :width], grad_both_NI[n, width:]
        for i in range(width):
            gate = read(gate_I[i])
            share, grad = _sigmoid(gate), read(grad_I[i])
            grad_up_I[i] = kept(grad_up_I, grad * gate * share)
            slope = share * (np.float32(1) + gate * (np.float32(1) - share))
            grad_gate_I[i] = kept(grad_gate_I, grad * read(up_I[i]) * slope)


@loop
def heads(x_NXD: Any, cos_ND: Any, sin_ND: Any, q_NHD: Any, k_NKD: Any, v_NKD: Any) -> None:
    """Split queries, keys and values, which are side by side, and rotate the first two by halves (arXiv 2104.09864).

    Keys are rounded to the dtype of the input, as in a rollout's KV cache, so that both see the same numbers.
    """
    (rows, queries, size), keys = q_NHD.shape, k_NKD.shape[1]
    for n in range(rows):
        for h in range(queries):
            turned(x_NXD[n, h], cos_ND[n], sin_ND[n], np.float32(1), q_NHD[n, h])
        for k in range(keys):
            k_D = k_NKD[n, k]
            turned(x_NXD[n, queries + k], cos_ND[n], sin_ND[n], np.float32(1), k_D)
            for d in range(size):
                k_D[d] = read(kept(x_NXD, k_D[d]))
            copied(x_NXD[n, queries + keys + k], v_NKD[n, k])


@loop_with_arrays
def heads_gradient(grad_q_NHD: Any, grad_k_NKD: Any, grad_v_NKD: Any, cos_ND: Any, sin_ND: Any, grad_NXD: Any) -> None:
    """Write the gradients of queries, keys and values side by side, the first two rotated back."""
    (rows, queries, size), keys = grad_q_NHD.shape, grad_k_NKD.shape[1]
    back_D, half = np.empty(size, np.float32), size // 2
    for n in range(rows):
        for d in range(half):  # the transposed rotation
            back_D[d], back_D[half + d] = -sin_ND[n, half + d], -sin_ND[n, d]
        for h in range(queries):
            turned(grad_q_NHD[n, h], cos_ND[n], back_D, np.float32(1), grad_NXD[n, h])
        for k in range(keys):
            turned(grad_k_NKD[n, k], cos_ND[n], back_D, np.float32(1), grad_NXD[n, queries + k])
            copied(grad_v_NKD[n, k], grad_NXD[n, queries + keys + k])


@loop
def turned(x_D: Any, cos_D: Any, sin_D: Any, factor: Any, out_D: Any) -> None:
    """Write a head's numbers, rotated and multiplied by a factor."""
    half = len(x_D) // 2
    whole, plain, opposite = half // SIZE * SIZE, every(factor), every(-factor)
    for d in range(0, whole, SIZE):
        first, second = load(x_D, (d,)), load(x_D, (half + d,))
        up, across = times(first, plain), times(second, plain)
        store(out_D, (d,), plus(times(up, load(cos_D, (d,))), times(second, opposite), load(sin_D, (d,))))
        store(out_D, (half + d,), plus(times(across, load(cos_D, (half + d,))), up, load(sin_D, (half + d,))))
    for d in range(whole, half):
        up, across = factor * read(x_D[d]), factor * read(x_D[half + d])
        out_D[d] = kept(out_D, up * cos_D[d] - across * sin_D[d])
        out_D[half + d] = kept(out_D, across * cos_D[half + d] + up * sin_D[half + d])
    for d in range(2 * half, len(x_D)):  # an odd last number is not rotated
        out_D[d] = kept(out_D, factor * read(x_D[d]))


@loop
def copied(x_D: Any, out_D: Any) -> None:
    whole = len(x_D) // SIZE * SIZE
    for d in range(0, whole, SIZE):
        store(out_D, (d,), load(x_D, (d,)))
    for d in range(whole, len(x_D)):
        out_D[d] = kept(out_D, read(x_D[d]))


@numba.njit(inline="always", error_model="numpy", fastmath={"contract"})
def _sigmoid(x: Any) -> Any:
    small = exp(-abs(x))
    return (np.float32(1) if x >= 0 else small) / (np.float32(1) + small)
