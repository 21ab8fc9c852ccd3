"""A rollout's token as one compiled loop for each layer of a decoder of Llama's kind.

Its products have few rows, and what it costs to start a dozen operators in every layer is as much again. Letters: B
rows, W hidden size, A = query heads + key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.compute.cpu.arrays import array, room
from coevolve.compute.cpu.panels import Panels
from coevolve.compute.cpu.prefix_cache import Looped

Turn = tuple[Any, Any]
Adapted = tuple[Any, tuple[tuple[Any, Any, int], ...]]
"""How many rows have the same adapters, run by run, and these on each product (``Adapters.panels``)."""

Layer = Callable[[int, Any, Any, Turn, Looped], None]
"""(number, x_BW, y_BW, turn, memory): a layer whose input is the sum of x and y, which become its output's. y is of the
products' kind."""


@cache
def nobodys(dtype: torch.dtype) -> Adapted:
    """No adapters."""
    nothing, _ = room((0, 0), dtype)
    return np.zeros(0, np.int64), ((nothing, nothing, 0),) * 4


def as_loop(
    module: Any, norm_AD: Tensor | None, products: Sequence[Panels], adapted: Callable[[], Adapted], compiled: Any
) -> Layer:
    """This layer as a loop.

    norm_AD: the weights of the norms of queries and keys, if there are any. products: queries, keys and values; output;
    gate and up; down. adapted: asked at every token, because rows leave.
    """
    attention, norms = module.self_attn, (module.input_layernorm, module.post_attention_layernorm)
    given = (
        tuple(array(norm.weight.detach()) for norm in norms),
        array(torch.empty(0, attention.head_dim) if norm_AD is None else norm_AD.detach()),
        tuple(norm.variance_epsilon for norm in (*norms, getattr(attention, "q_norm", norms[0]))),
        tuple(product.panels_L for product in products),
        tuple(product.bias_O for product in products),
    )

    def run(number: int, x_BW: Any, y_BW: Any, turn: Turn, memory: Looped) -> None:
        runs_M, adapters_ML = adapted()
        assert len(runs_M) == 0 or runs_M.sum() == len(x_BW), "adapters of other rows"
        seen = memory.seen(number, y_BW.dtype)
        compiled.layer(x_BW, y_BW, *given, runs_M, adapters_ML, *turn, *seen, memory.filled, attention.scaling)

    return run
