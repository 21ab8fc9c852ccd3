"""The backend of compiled loops (numba), for decoders of Llama's kind on the CPU; PyTorch then uses one thread.

Letters: N the action tokens of all rows in one line, W hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from coevolve.compute.cpu import training
from coevolve.compute.cpu.attention import PrefixCache, TreeAttention
from coevolve.compute.cpu.decoder import MOST, Decoder
from coevolve.compute.cpu.products import inner, linear, panels, times
from coevolve.compute.forward import packed_actions
from coevolve.compute.logprobs import Operations, action_logps, as_it_is
from coevolve.interfaces import LMHead, Reference, Sampler
from coevolve.models.adapters import Adapters
from coevolve.models.weights import Base, head, trunk
from coevolve.types import Batch


@dataclass(frozen=True)
class CpuBackend:
    """The backend with compiled loops between matrix products, and prefix trees in updates and rollouts."""

    base: Base
    name: str = "cpu"
    about: str = "cpu, compiled loops"
    uses_prefix_tree: bool = True

    def sampler(self, adapters: Adapters, dtype: torch.dtype) -> Sampler:
        """Return a sampler with copies of the weights of all products (some are made once and kept), whose KV cache
        holds a prompt's keys and values once for all its rows."""
        layer, decoder = head(self.base.causal), Decoder(trunk(self.base.causal), dtype, adapters)
        often = isinstance(layer, nn.Linear) and layer.weight.numel() <= MOST
        logits = panels([layer], dtype, torch.float32) if often else self.lm_head(dtype)
        return Sampler(partial(PrefixCache, decoder, adapters), logits)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states that predict the action tokens, [N, W]."""
        tree, where_N = packed_actions(batch)
        return training.forward(trunk(self.base.causal), TreeAttention(tree), where_N, self.base.adapters)

    def logprobs(
        self, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor, reference: Reference | None = None
    ) -> tuple[Tensor, ...]:
        """Return log-probabilities and entropies, and KLs with a reference, [N] each (``logprobs.action_logps``)."""
        return action_logps(head(self.base.causal), hidden_NW, action_N, temperature_N, OPERATIONS, reference=reference)

    def lm_head(self, dtype: torch.dtype) -> LMHead:
        """Return ``lm_head`` of the model's head; in bfloat16 it holds a copy of the weights."""
        return lm_head(head(self.base.causal), dtype)


def lm_head(layer: Any, dtype: torch.dtype) -> LMHead:
    """Return what ``compute.logprobs.lm_head`` returns, computed with this backend's products."""
    if not isinstance(layer, nn.Linear):
        return partial(as_it_is, layer)
    if dtype != torch.float32:
        return panels([layer], dtype, torch.float32)
    return lambda hidden_NW: _float32(layer, hidden_NW)


def _float32(layer: nn.Linear, hidden_NW: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return linear(hidden_NW.float(), layer.weight, layer.bias)


OPERATIONS = Operations(lm_head, times, inner)
