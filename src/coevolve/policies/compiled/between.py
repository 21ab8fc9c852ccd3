"""What is between products: norms, gates and rotations, and their gradients. Each is one pass over memory.

Letters: N rows, W hidden size, I between gate and down, H heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from coevolve.policies.compiled.loop import exp, loop


@loop
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


@loop
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


@loop
def gated(both_NI: Any, out_NI: Any) -> None:
    """silu(gate) up, of gate and up side by side."""
    rows, width = out_NI.shape
    for n in range(rows):
        _gate(both_NI[n, :width], both_NI[n, width:], out_NI[n])


@loop
def gated_apart(gate_NI: Any, up_NI: Any, out_NI: Any) -> None:
    """silu(gate) up."""
    for n in range(len(out_NI)):
        _gate(gate_NI[n], up_NI[n], out_NI[n])


@loop
def _gate(gate_I: Any, up_I: Any, out_I: Any) -> None:
    for i in range(len(out_I)):
        out_I[i] = gate_I[i] * _sigmoid(gate_I[i]) * up_I[i]


@loop
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


@loop
def turn(x_NHD: Any, cos_ND: Any, sin_ND: Any, out_NHD: Any) -> None:
    """Heads turned by halves (arXiv 2104.09864)."""
    rows, heads, _ = x_NHD.shape
    for n in range(rows):
        for h in range(heads):
            turned(x_NHD[n, h], cos_ND[n], sin_ND[n], np.float32(1), out_NHD[n, h])


@loop
def turned(x_D: Any, cos_D: Any, sin_D: Any, factor: Any, out_D: Any) -> None:
    half = len(x_D) // 2
    for d in range(half):
        out_D[d] = factor * (x_D[d] * cos_D[d] - x_D[half + d] * sin_D[d])
    for d in range(half):
        out_D[half + d] = factor * (x_D[half + d] * cos_D[half + d] + x_D[d] * sin_D[half + d])
    for d in range(2 * half, len(x_D)):  # of models that do not turn
        out_D[d] = factor * x_D[d]


@numba.njit(inline="always", error_model="numpy", fastmath={"contract"})
def _sigmoid(x: Any) -> Any:
    small = exp(-abs(x))
    return (np.float32(1) if x >= 0 else small) / (np.float32(1) + small)
