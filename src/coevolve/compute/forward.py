"""What a model says about actions: one forward in which rows share what they have in common.

Letters: B rows, S positions, T action tokens, N the action tokens of all rows in one line, W hidden size. The hidden
state that predicts action token t of a row is the one at position start - 1 + t.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.compute import prefix_tree as forest
from coevolve.compute.attention import no_mask, shares
from coevolve.compute.cpu import training as fused
from coevolve.compute.cpu.prefix_cache import loops
from coevolve.compute.packed_tokens import Packed, pack
from coevolve.compute.prefix_tree import Ids, common, grow, ordered
from coevolve.models.weights import trunk
from coevolve.types import Batch


def micro_batches(causal: Any, batch: Batch, micro_tokens: int) -> list[Tensor]:
    """Row numbers in groups of at most micro_tokens tokens each (or one row).

    Where the model shares, rows with a common beginning come together and it counts once; else rows of similar length
    do, and padding counts.
    """
    rows, groups = fed(batch), list[list[int]]()
    size, before, ends = 0, -1, list[int]()
    sharing = shares(causal)
    for b in ordered(rows) if sharing else sorted(range(len(rows)), key=lambda b: -len(rows[b])):
        width = len(rows[groups[-1][0]]) if groups else 0  # of the group, without sharing
        new = width
        if groups and sharing:
            new = len(rows[b]) - forest.shared(ends, common(rows[before], rows[b]), len(rows[b]))
        if groups and size + new <= micro_tokens:
            groups[-1].append(b)
            size += new
        else:
            groups.append([b])
            size, ends = len(rows[b]), [len(rows[b])]
        before = b
    return [torch.tensor(sorted(group)) for group in groups]


def hidden_states(causal: Any, batch: Batch, device: torch.device) -> Tensor:
    """Last hidden states where each action token is predicted, [N, W] on the device, rows in order."""
    return _shared(causal, batch, device) if shares(causal) else _padded(causal, batch, device)


def fed(batch: Batch) -> list[Ids]:
    """What is fed of each row: all but the last token, which predicts nothing that was sampled."""
    ids_BS = batch.ids_BS.numpy()
    return [ids_BS[b, : length - 1] for b, length in enumerate(batch.length_B.tolist())]


def _shared(causal: Any, batch: Batch, device: torch.device) -> Tensor:
    grown = grow(fed(batch))
    packed = pack(grown, device, loops(trunk(causal)))
    start_B = batch.start_B.tolist()
    where = np.concatenate([leaf.path[start - 1 :] for leaf, start in zip(grown.leaf_B, start_B, strict=True)])
    where_N = torch.from_numpy(where).to(device)
    return (fused.forward if fused.serves(causal) else by_modules)(causal, packed, where_N)


def by_modules(causal: Any, packed: Packed, where_X: Tensor) -> Tensor:
    """The last hidden states of these packed tokens, [X, W], from transformers' modules."""
    found: Any = trunk(causal)(
        input_ids=packed.ids_N[None],
        position_ids=packed.position_N[None],
        attention_mask=no_mask(packed.ids_N.device),
        use_cache=False,
        sharing=packed,
    )
    return torch.nn.functional.embedding(where_X, found.last_hidden_state[0])


def _padded(causal: Any, batch: Batch, device: torch.device) -> Tensor:
    """Rows padded on the right, so causal attention never sees padding and no mask is needed."""
    ids_BS = batch.ids_BS[:, :-1]
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


def to_BT(x_N: Tensor, mask_BT: Tensor) -> Tensor:
    """One number per action token back in its place, 0 outside the mask; differentiable."""
    mask_BT = mask_BT.to(x_N.device)
    return torch.zeros(mask_BT.shape, dtype=x_N.dtype, device=x_N.device).masked_scatter(mask_BT, x_N)
