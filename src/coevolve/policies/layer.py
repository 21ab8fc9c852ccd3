"""A rollout's token as one compiled loop for each layer of a decoder of Llama's kind.

Its products have few rows, and what it costs to start a dozen operators in every layer is as much again. Letters: B
rows, W hidden size, A = query heads + key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from coevolve.policies.looped import Looped, array
from coevolve.policies.panels import Panels

Turn = tuple[Any, Any]
Layer = Callable[[int, Any, Any, Turn, Looped], None]
"""(number, x_BW, y_BW, turn, memory): a layer whose input is the sum of x and y, which become its output's. y is of the
products' kind."""


def as_loop(module: Any, norm_AD: Tensor | None, products: Sequence[Panels], compiled: Any) -> Layer:
    """This layer as a loop.

    norm_AD: the weights of the norms of queries and keys, if there are any. products: queries, keys and values; output;
    gate and up; down.
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
        compiled.layer(x_BW, y_BW, *given, *turn, *memory.seen(number, y_BW.dtype), memory.filled, attention.scaling)

    return run
