"""What a model says about actions: log-probabilities, entropies, KL, at action positions only.

Letters: B rows, S positions, T action tokens, N the action tokens of all rows in one line, D hidden size, V vocabulary.
Rows are padded on the right, so causal attention never sees padding and no mask is needed. The hidden state that
predicts action token t of a row is the one at position start - 1 + t.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from coevolve.policies.weights import logits, trunk
from coevolve.types import Batch

LOGITS_AT_ONCE = 1 << 24
"""Logits held at a time; beyond it they are made in pieces, and made again for the gradient."""


def micro_batches(length_B: Tensor, micro_tokens: int) -> list[Tensor]:
    """Row numbers in groups of similar length: at most micro_tokens tokens each, padding included (or one row)."""
    lengths = length_B.tolist()
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= micro_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [torch.tensor(sorted(group)) for group in groups]


def hidden_states(causal: Any, batch: Batch, device: torch.device) -> Tensor:
    """Last hidden states where each action token is predicted, [N, D] on the device, rows in order."""
    ids_BS = batch.ids_BS[:, :-1]  # the last token predicts nothing that was sampled
    row_N, t_N = batch.mask_BT.nonzero(as_tuple=True)
    where_N = row_N * ids_BS.shape[1] + batch.start_B[row_N] - 1 + t_N
    ids_BS = ids_BS.to(device)
    # The mask of ones says that all tokens count; without one, models guess from padding ids.
    found: Any = trunk(causal)(input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS), use_cache=False)
    hidden_ND: Tensor = found.last_hidden_state.flatten(0, 1)
    chosen_ND: Tensor = hidden_ND[where_N.to(device)]
    return chosen_ND


def actions(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """The action tokens and their rows' temperatures, [N] each, on the device."""
    temperature_BT = batch.temperature_B[:, None].expand(batch.mask_BT.shape)
    return batch.action_BT[batch.mask_BT].to(device), temperature_BT[batch.mask_BT].to(device)


def pieces(n: int, vocabulary: int) -> Iterator[slice]:
    """Slices of n action tokens such that each one's logits are few enough."""
    size = max(1, LOGITS_AT_ONCE // vocabulary)
    return (slice(start, start + size) for start in range(0, n, size))


def log_softmax(head: Any, hidden_ND: Tensor, temperature_N: Tensor) -> Tensor:
    """log softmax(logits / temperature) over the vocabulary in float32, [N, V]."""
    return (logits(head, hidden_ND) / temperature_N[:, None]).log_softmax(-1)


def action_logps(head: Any, hidden_ND: Tensor, action_N: Tensor, temperature_N: Tensor) -> Tensor:
    """Log-probability of each action token, [N], differentiable; memory does not grow with N * V."""

    def piece(hidden: Tensor, action: Tensor, temperature: Tensor) -> Tensor:
        return log_softmax(head, hidden, temperature).gather(-1, action[:, None])[:, 0]

    parts = list(pieces(len(action_N), head.weight.shape[0]))
    if len(parts) == 1 or not torch.is_grad_enabled():
        made = [piece(hidden_ND[p], action_N[p], temperature_N[p]) for p in parts]
    else:
        made = [checkpoint(piece, hidden_ND[p], action_N[p], temperature_N[p], use_reentrant=False) for p in parts]
    return torch.cat(made)


def to_BT(x_N: Tensor, mask_BT: Tensor) -> Tensor:
    """One number per action token back in its place, 0 outside the mask; differentiable."""
    mask_BT = mask_BT.to(x_N.device)
    return torch.zeros(mask_BT.shape, dtype=x_N.dtype, device=x_N.device).masked_scatter(mask_BT, x_N)
