"""A layer of a decoder of Llama's kind for one token of a few rows.

Letters: B and N rows, W hidden size, I inputs, O outputs, X columns, A = query heads + key heads, D head dimension; and
those of ``attention``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coevolve.policies.compiled.attention import attend, dots
from coevolve.policies.compiled.between import added, gated
from coevolve.policies.compiled.loop import loop, loop_with_arrays
from coevolve.policies.compiled.vectors import SIZE, fetch

_AHEAD = 16
"""Rows of weights between the one that is fetched and the one that is used."""


@loop_with_arrays
def layer(
    x_BW: Any, y_BW: Any, norms_W: Any, norm_AD: Any, epsilons: Any, weights_OI: Any, biases_O: Any, cos_BD: Any,
    sin_BD: Any, prompt_EKTD: Any, length_E: Any, prompt_B: Any, own_BKTD: Any, filled: Any, scaling: Any,
) -> None:  # fmt: skip
    """A layer of a decoder of Llama's kind, for one token of a few rows. What comes in is the sum of x and y, and so is
    what goes out.

    norm_AD: of queries and keys, none if empty. epsilons: of the norms of the layer, of its second half, and of heads.
    weights_OI, biases_O: of queries, keys, values, output, gate, up, down. The others are ``attend``'s.
    """
    rows, width, size, inner = len(x_BW), len(weights_OI[0]), len(cos_BD[0]), len(weights_OI[4])
    both = width + len(weights_OI[1])
    normed_BW, scale_B = np.empty_like(x_BW), np.empty(rows, np.float32)
    heads_BO = np.empty((rows, both + len(weights_OI[2])), np.float32)
    attended_BO = np.empty((rows, width), np.float32)
    both_BI, gated_BI = np.empty((rows, 2 * inner), np.float32), np.empty((rows, inner), np.float32)
    added(x_BW, y_BW, norms_W[0], epsilons[0], x_BW, scale_B, normed_BW)
    product(normed_BW, weights_OI[0], biases_O[0], heads_BO, 0)
    product(normed_BW, weights_OI[1], biases_O[1], heads_BO, width)
    product(normed_BW, weights_OI[2], biases_O[2], heads_BO, both)
    heads_BXD, attended_BHD = heads_BO.reshape((rows, -1, size)), attended_BO.reshape((rows, -1, size))
    _norm_heads(heads_BXD, norm_AD, epsilons[2])
    seen = (prompt_EKTD, length_E, prompt_B, own_BKTD)
    attend(heads_BXD, cos_BD, sin_BD, *seen, filled, scaling, attended_BHD)
    product(attended_BO, weights_OI[3], biases_O[3], y_BW, 0)
    added(x_BW, y_BW, norms_W[1], epsilons[1], x_BW, scale_B, normed_BW)
    product(normed_BW, weights_OI[4], biases_O[4], both_BI, 0)
    product(normed_BW, weights_OI[5], biases_O[5], both_BI, inner)
    gated(both_BI, gated_BI)
    product(gated_BI, weights_OI[6], biases_O[6], y_BW, 0)


@loop
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


@loop_with_arrays
def product(x_NI: Any, weight_OI: Any, bias_O: Any, out_NX: Any, at: Any) -> None:
    """x W' + b of few rows, into out from column ``at`` on. The weights come from memory once, fetched ahead."""
    (outputs, inputs), rows = weight_OI.shape, len(x_NI)
    x_L, weight_L, sums_N = x_NI.reshape(-1), weight_OI.reshape(-1), np.empty(rows + SIZE, np.float32)
    for o in range(outputs):
        for i in range(0, inputs, SIZE):
            fetch(weight_OI, (min(o + _AHEAD, outputs - 1), i))
        dots(weight_L, o * inputs, inputs, x_L, 0, inputs, rows, sums_N, 0)
        for n in range(rows):
            out_NX[n, at + o] = sums_N[n] + bias_O[o]
