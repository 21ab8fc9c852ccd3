"""The LM head: logits of hidden states, in float32 whatever else is computed in.

In bfloat16 its inputs and weights are rounded, as those of all other layers are; sums and logits are not, because at a
logit of 40 bfloat16's steps are 0.25. Letters: N rows, W hidden size, V vocabulary.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from coevolve.interfaces import LMHead


def lm_head(layer: Any, dtype: torch.dtype) -> LMHead:
    """How this layer makes logits of hidden states while its weights do not change. dtype: of what is multiplied.

    In bfloat16 it keeps a copy of the weights, and logits have no gradient. What is more than a matrix, such as a layer
    with adapters, computes in float32 as it is.
    """
    if dtype == torch.float32 or not isinstance(layer, nn.Linear):
        return partial(as_it_is, layer)
    return _of_rounded(layer, dtype)


def as_it_is(layer: Any, hidden_NW: Tensor) -> Tensor:
    """By the layer itself in float32; differentiable."""
    with torch.autocast(hidden_NW.device.type, enabled=False):
        found: Tensor = layer(hidden_NW.float())
    return found


def _of_rounded(layer: nn.Linear, dtype: torch.dtype) -> LMHead:
    """Where there is no product of these numbers with float32 sums, float32's is the same."""
    weight_VW, bias_V = layer.weight.detach().to(dtype), None if layer.bias is None else layer.bias.detach().float()
    product = _summed if _sums_wide(weight_VW.device, dtype) else functional.linear
    weight_VW = weight_VW if product is _summed else weight_VW.float()

    def logits(hidden_NW: Tensor) -> Tensor:
        with torch.autocast(hidden_NW.device.type, enabled=False):
            return product(hidden_NW.to(dtype).to(weight_VW.dtype), weight_VW, bias_V)

    return logits


def _summed(hidden_NW: Tensor, weight_VW: Tensor, bias_V: Tensor | None) -> Tensor:
    logits_NV = torch.mm(hidden_NW, weight_VW.t(), out_dtype=torch.float32)
    return logits_NV if bias_V is None else logits_NV.add_(bias_V)


@cache
def _sums_wide(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch has a product of such numbers with float32 sums there: new ones have, on GPUs."""
    if device.type == "cpu":
        return False
    try:
        x_12 = torch.tensor([[256.0, 1.0]], device=device, dtype=dtype)
        return _summed(x_12, x_12, None).item() == 65537  # which is 65536 in bfloat16
    except (TypeError, RuntimeError, NotImplementedError):
        return False
