"""The reference backend: plain transformers, one row at a time. Every other backend is compared with it.

The code is slow and meant to be read. Letters: B rows, U distinct prompts, N the action tokens of all rows in one line,
W hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import DynamicCache

from coevolve.compute.logprobs import as_it_is, lm_head, log_softmax
from coevolve.interfaces import LMHead, Reference, Sampler
from coevolve.maths import kl
from coevolve.models.adapters import Adapters
from coevolve.models.weights import Base, head, trunk
from coevolve.types import Batch


@dataclass(frozen=True)
class ReferenceBackend:
    """The backend that calls transformers' modules and attention once for every row."""

    base: Base
    name: str = "reference"
    about: str = "reference, one row at a time"
    uses_prefix_tree: bool = False

    def sampler(self, adapters: Adapters, dtype: torch.dtype) -> Sampler:
        """Return a sampler that feeds the rows one by one, each with its own transformers KV cache."""
        return Sampler(partial(Rows, self.base.causal, adapters), self.lm_head(dtype))

    def hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states that predict the action tokens, [N, W]; all tokens of a row but the last are fed."""
        device = self.base.causal.device
        found = []
        for b, (start, length) in enumerate(zip(batch.start_B.tolist(), batch.length_B.tolist(), strict=True)):
            ids_1S = batch.ids_BS[b : b + 1, : length - 1].to(device)
            mask_1S = torch.ones_like(ids_1S)  # without one, some models derive it from padding ids
            out: Any = trunk(self.base.causal)(input_ids=ids_1S, attention_mask=mask_1S, use_cache=False)
            found.append(out.last_hidden_state[0, start - 1 :])
        return torch.cat(found)

    def logprobs(
        self, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor, reference: Reference | None = None
    ) -> tuple[Tensor, ...]:
        """Return log-probabilities, entropies and KLs, from the whole vocabulary's log-softmax in float32."""
        logits_NV = _logits(head(self.base.causal), hidden_NW)
        logp_NV = (logits_NV / temperature_N[:, None]).log_softmax(-1)
        found = logp_NV.gather(-1, action_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)
        if reference is None:
            return found
        return *found, kl.full(logp_NV, log_softmax(reference.logits, reference.hidden_NW, temperature_N))

    def lm_head(self, dtype: torch.dtype) -> LMHead:
        """Return ``logprobs.lm_head`` of the model's head."""
        return lm_head(head(self.base.causal), dtype)


def _logits(layer: Any, hidden_NW: Tensor) -> Tensor:
    """Return differentiable logits in float32, from inputs and weights rounded to autocast's dtype, if it is on."""
    kind = hidden_NW.device.type
    if not torch.is_autocast_enabled(kind) or not isinstance(layer, nn.Linear):
        return as_it_is(layer, hidden_NW)
    dtype = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        return linear(hidden_NW.to(dtype).float(), layer.weight.to(dtype).float(), layer.bias)


class Row:
    """One row of a rollout: the number of its adapter (speaker), its KV cache, and the last hidden state."""

    def __init__(self, causal: Any, adapters: Adapters, prompt: Sequence[int], speaker: int) -> None:
        self.causal, self.adapters, self.speaker = causal, adapters, speaker
        self.cache, self.length = DynamicCache(config=causal.config), 0
        self.hidden_1W = self.feed(torch.tensor([list(prompt)], device=causal.device))

    def feed(self, ids_1S: Tensor) -> Tensor:
        """Feed tokens and return the hidden state of the last one, [1, W]."""
        self.adapters.split(np.full(ids_1S.shape[1], self.speaker))
        self.length += ids_1S.shape[1]
        found: Any = trunk(self.causal)(
            input_ids=ids_1S,
            attention_mask=torch.ones((1, self.length), dtype=torch.long, device=ids_1S.device),
            past_key_values=self.cache,
            use_cache=True,
        )
        hidden_1W: Tensor = found.last_hidden_state[:, -1]
        return hidden_1W


class Rows:
    """The KV caches of all rows, as a ``KVCache``. Every row's prompt is fed separately."""

    dead_share = 1 << 30  # finished rows are dropped at once

    def __init__(
        self,
        causal: Any,
        adapters: Adapters,
        prompts: Sequence[Sequence[int]],
        speaker_U: Sequence[int],
        prompt_B: Sequence[int],
        steps: int,
    ) -> None:
        self.rows = [Row(causal, adapters, prompts[u], speaker_U[u]) for u in prompt_B]
        last = {u: row.hidden_1W for u, row in zip(prompt_B, self.rows, strict=True)}
        self.hidden_UW = torch.cat([last[u] for u in range(len(prompts))])

    def step(self, ids_B: Tensor, position_B: Tensor) -> Tensor:
        """Feed one token per row and return the last hidden states, [B, W]."""
        return torch.cat([row.feed(token[None, None]) for row, token in zip(self.rows, ids_B, strict=True)])

    def keep(self, order_B: Tensor, holes: Tensor) -> None:
        """Replace each row b by row ``order_B[b]``, and drop the rows after the last."""
        self.rows = [self.rows[b] for b in order_B.tolist()]
