"""Frozen weights, held in the bfloat16 that they are multiplied in: half the memory, and no cast at every step.

Only weights that a computation in bfloat16 rounds in any case, or that lose nothing by rounding, are held so: results
stay the same, to the bit. Biases and norms, which are small, stay float32, and so do the hidden states between layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


@torch.no_grad()
def narrow(causal: Any) -> None:
    """Convert the weights of a model's linear layers to bfloat16, in place, except trained ones (adapters'). Afterwards
    the model must not be used in float32.

    A head with an adapter always computes in float32 and keeps its weights. A computation in bfloat16 does not round an
    input embedding, so that is converted only if none of its numbers changes.
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
    """Return whether bfloat16 represents every number of the tensor exactly."""
    return bool((weight.to(torch.bfloat16).to(weight.dtype) == weight).all())


def _hold(weight: Tensor) -> None:
    weight.data = weight.data.to(torch.bfloat16)


def _widened(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Convert the embedding's output to float32; a forward hook."""
    return output.float()
