"""A layer of a decoder of Llama's kind for one token of every row.

Letters: B rows, M runs of rows with the same adapters, W hidden size, I between gate and down, X columns of queries,
keys and values, A = query heads + key heads, D head dimension, L an array as one line; and those of ``attention``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coevolve.compute.cpu.loops.attention import attend
from coevolve.compute.cpu.loops.between import added, copied, gated
from coevolve.compute.cpu.loops.loop import loop, loop_with_arrays
from coevolve.compute.cpu.loops.product import product
from coevolve.compute.cpu.loops.vectors import kept, read


@loop_with_arrays
def layer(
    x_BW: Any, y_BW: Any, norms_W: Any, norm_AD: Any, epsilons: Any, panels_L: Any, biases_X: Any,
    runs_M: Any, adapters_ML: Any, cos_BD: Any, sin_BD: Any, prompt_EKTD: Any, length_E: Any, prompt_B: Any,
    own_BKTD: Any, filled: Any, scaling: Any,
) -> None:  # fmt: skip
    """What comes in is the sum of x and y, and so is what goes out. What products make and take is of y's kind.

    norm_AD: of queries and keys, none if empty. epsilons: of the norms of the layer, of its second half, and of heads.
    panels_L, biases_X: of the products of queries, keys and values; of the output; of gate and up; of down
    (``product``). runs_M: how many rows have the same adapters; adapters_ML: those on each product, if there are any.
    The others are ``attend``'s.
    """
    rows, size, kind, inner = len(x_BW), cos_BD.shape[1], y_BW.dtype, len(biases_X[2]) // 2
    normed_BW, scale_B = np.empty_like(y_BW), np.empty(rows, np.float32)
    heads_BX = np.empty((rows, len(biases_X[0])), kind)
    wide = heads_BX.shape[1] - 2 * own_BKTD.shape[1] * size
    attended_BX, rounded_BX = np.empty((rows, wide), np.float32), np.empty((rows, wide), kind)
    both_BI, gated_BI = np.empty((rows, 2 * inner), kind), np.empty((rows, inner), kind)
    added(x_BW, y_BW, norms_W[0], epsilons[0], x_BW, scale_B, normed_BW)
    product(normed_BW, panels_L[0], biases_X[0], heads_BX, False)
    _adapt(normed_BW, runs_M, adapters_ML[0], heads_BX)
    heads_BXD, attended_BHD = heads_BX.reshape((rows, -1, size)), attended_BX.reshape((rows, -1, size))
    if len(norm_AD):
        _norm_heads(heads_BXD, norm_AD, epsilons[2])
    seen = (prompt_EKTD, length_E, prompt_B, own_BKTD)
    attend(heads_BXD, cos_BD, sin_BD, *seen, filled, scaling, attended_BHD)
    copied(attended_BX.reshape(-1), rounded_BX.reshape(-1))
    product(rounded_BX, panels_L[1], biases_X[1], y_BW, False)
    _adapt(rounded_BX, runs_M, adapters_ML[1], y_BW)
    added(x_BW, y_BW, norms_W[1], epsilons[1], x_BW, scale_B, normed_BW)
    product(normed_BW, panels_L[2], biases_X[2], both_BI, False)
    _adapt(normed_BW, runs_M, adapters_ML[2], both_BI)
    gated(both_BI, gated_BI)
    product(gated_BI, panels_L[3], biases_X[3], y_BW, False)
    _adapt(gated_BI, runs_M, adapters_ML[3], y_BW)


@loop_with_arrays
def _adapt(x_BI: Any, runs_M: Any, adapters_ML: Any, out_BO: Any) -> None:
    """Add what every run's adapter makes of its rows: with its rank's down and up, each in panels."""
    down_ML, up_ML, rank = adapters_ML
    if rank:
        end, no_R, no_O = 0, np.zeros(rank, np.float32), np.zeros(out_BO.shape[1], np.float32)
        for m in range(len(runs_M)):
            begin, end = end, end + runs_M[m]
            down_BR = np.empty((end - begin, rank), x_BI.dtype)
            product(x_BI[begin:end], down_ML[m], no_R, down_BR, False)
            product(down_BR, up_ML[m], no_O, out_BO[begin:end], True)


@loop
def _norm_heads(heads_BXD: Any, weight_AD: Any, epsilon: Any) -> None:
    """The first heads become their RMSNorm."""
    for b in range(len(heads_BXD)):
        for a in range(len(weight_AD)):
            x_D, weight_D, squares = heads_BXD[b, a], weight_AD[a], np.float32(0)
            for d in range(len(x_D)):
                squares += read(x_D[d]) * read(x_D[d])
            scale = np.float32(1 / np.sqrt(squares / len(x_D) + epsilon))
            for d in range(len(x_D)):
                x_D[d] = kept(x_D, read(x_D[d]) * (weight_D[d] * scale))
