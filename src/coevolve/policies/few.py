"""A token of few rows, as one compiled loop for each layer of a decoder of Llama's kind.

Of a product of few rows the weights have to be read, and that is all it takes; then what it costs to start a dozen
operators in every layer is as much again. Letters: B rows, W hidden size, A = query heads + key heads, D head
dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.policies.looped import Looped, array

MOST = 4
"""Rows; with more, oneDNN's products are faster."""

Turn = tuple[Any, Any]
Layer = Callable[[int, Any, Any, Turn, Looped], None]
"""(number, x_BW, y_BW, turn, memory): a layer whose input is the sum of x and y, which become its output's."""


def layer(module: Any, norm_AD: Tensor | None, compiled: Any) -> Layer:
    """This layer as a loop. norm_AD: the weights of the norms of queries and keys, if there are any."""
    attention, mlp = module.self_attn, module.mlp
    inner = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    products = [getattr(p, "base_layer", p) for p in (*inner, mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
    norms = (module.input_layernorm, module.post_attention_layernorm)
    epsilons = [norm.variance_epsilon for norm in (*norms, getattr(attention, "q_norm", norms[0]))]
    weights = tuple(array(product.weight.detach().contiguous()) for product in products)
    biases = tuple(np.zeros(len(p.weight), np.float32) if p.bias is None else array(p.bias.detach()) for p in products)
    given = (
        tuple(array(norm.weight.detach()) for norm in norms),
        array(torch.empty(0, attention.head_dim) if norm_AD is None else norm_AD.detach()),
        tuple(epsilons),
        weights,
        biases,
    )

    def run(number: int, x_BW: Any, y_BW: Any, turn: Turn, memory: Looped) -> None:
        compiled.layer(x_BW, y_BW, *given, *turn, *memory.seen(number), memory.filled, attention.scaling)

    return run
