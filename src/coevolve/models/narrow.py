"""Weights that nobody trains, held in the bfloat16 that they are multiplied in: half the memory, and no cast at a step.

Only what a computation in bfloat16 rounds in any case is held so, or what loses nothing by it: its numbers stay the
same, to the bit. Biases and norms, which are small, stay float32; so does what flows from layer to layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


@torch.no_grad()
def narrow(causal: Any) -> None:
    """Hold the weights of a model's products in bfloat16, in place, but for those that are trained (adapters'). Nobody
    may compute by it in float32.

    A head with an adapter computes in float32 whatever the dtype is, and keeps its weights; an input embedding is not
    rounded by a computation in bfloat16, so it is only held so where none of its numbers changes.
    """
    embedding, head = causal.get_input_embeddings(), causal.get_output_embeddings()
    kept = {id(layer.weight) for layer in (embedding, getattr(head, "base_layer", None)) if layer is not None}
    if type(embedding) is nn.Embedding and not hasattr(head, "base_layer") and exact(embedding.weight):
        kept.clear()
        _hold(embedding.weight)
        embedding.register_forward_hook(_widened)
    for module in causal.modules():
        if type(module) in (nn.Linear, Conv1D) and id(module.weight) not in kept and not module.weight.requires_grad:
            _hold(module.weight)


def exact(weight: Tensor) -> bool:
    """Whether bfloat16 has every number of it."""
    return bool((weight.to(torch.bfloat16).to(weight.dtype) == weight).all())


def _hold(weight: Tensor) -> None:
    weight.data = weight.data.to(torch.bfloat16)


def _widened(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """A forward hook: what flows from layer to layer is float32."""
    return output.float()
