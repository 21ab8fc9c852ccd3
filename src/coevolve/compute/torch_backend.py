"""The backend of PyTorch and transformers' own modules, on any device: prefix trees where the model's attention allows.

Letters: B rows, S positions, N the action tokens of all rows in one line, X packed tokens that are wanted, W hidden
size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coevolve.compute import draw
from coevolve.compute.attention import RowAttention, no_mask
from coevolve.compute.forward import packed_actions
from coevolve.compute.lm_head import lm_head
from coevolve.compute.logprobs import action_logps
from coevolve.compute.row_cache import RowCache
from coevolve.interfaces import KVCache, LMHead
from coevolve.models.adapters import Adapters
from coevolve.models.weights import Base, head, trunk
from coevolve.types import Batch, Sampling


@dataclass(frozen=True)
class TorchBackend:
    """uses_prefix_tree: our attention gives what the model's own does (``backend``). why_not: why the compiled loops of
    the CPU were not chosen, empty if nobody asked."""

    base: Base
    uses_prefix_tree: bool
    why_not: str = ""
    name: str = "torch"

    @property
    def about(self) -> str:
        """With whose attention, and why not by compiled loops."""
        kind = "prefix tree" if self.uses_prefix_tree else "rows apart (attention of the model's own kind)"
        return f"torch, {kind}" + (f"; not cpu: {self.why_not}" if self.why_not else "")

    @contextmanager
    def sampler(self, adapters: Adapters, dtype: torch.dtype) -> Iterator[TorchSampler]:
        """Modules compute in dtype by autocast, which is the caller's."""
        yield TorchSampler(self.base, adapters, self.lm_head(dtype))

    def hidden(self, batch: Batch) -> Tensor:
        """[N, W] on the model's device."""
        return self._packed(batch) if self.uses_prefix_tree else self._padded(batch)

    def logprobs(self, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
        """[N] each."""
        return action_logps(head(self.base.causal), hidden_NW, action_N, temperature_N)

    def lm_head(self, dtype: torch.dtype) -> LMHead:
        """Of the model's own layer."""
        return lm_head(head(self.base.causal), dtype)

    def _packed(self, batch: Batch) -> Tensor:
        tree, where_N = packed_actions(batch)
        device = self.base.causal.device
        return tree_hidden(self.base.causal, RowAttention(tree, device), where_N.to(device))

    def _padded(self, batch: Batch) -> Tensor:
        """Rows padded on the right, so causal attention never sees padding and no mask is needed."""
        ids_BS, device = batch.ids_BS[:, :-1], self.base.causal.device
        row_N, t_N = batch.mask_BT.nonzero(as_tuple=True)
        where_N = row_N * ids_BS.shape[1] + batch.start_B[row_N] - 1 + t_N
        ids_BS = ids_BS.to(device)
        # The mask of ones says that all tokens count; without one, models guess from padding ids.
        found: Any = trunk(self.base.causal)(input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS), use_cache=False)
        hidden_NW: Tensor = found.last_hidden_state.flatten(0, 1)
        chosen_NW: Tensor = hidden_NW[where_N.to(device)]
        return chosen_NW


@dataclass(frozen=True)
class TorchSampler:
    """A rollout by transformers' modules and attention."""

    base: Base
    adapters: Adapters
    logits: LMHead

    def session(
        self, prompts: Sequence[Sequence[int]], speaker_U: Sequence[int], prompt_B: Sequence[int], steps: int
    ) -> KVCache:
        """Every distinct prompt is fed once, and copied for its rows."""
        return RowCache(self.base.causal, prompts, speaker_U, prompt_B, steps, self.adapters)

    def draw(self, logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling, seen_BV: Tensor | None) -> draw.Draw:
        """``compute.draw``."""
        return draw.draw(logits_BV, uniform_B, sampling, seen_BV)


def tree_hidden(causal: Any, tree: RowAttention, where_X: Tensor) -> Tensor:
    """The last hidden states of these packed tokens, [X, W], by transformers' modules with this attention."""
    found: Any = trunk(causal)(
        input_ids=tree.ids_N[None],
        position_ids=tree.position_N[None],
        attention_mask=no_mask(where_X.device),
        use_cache=False,
        tree_attention=tree,
    )
    return torch.nn.functional.embedding(where_X, found.last_hidden_state[0])
