"""Preparation of a batch for the model: micro-batches, prefix trees, the places of action tokens.

Letters: B rows, S positions, T action tokens, N the action tokens of all rows in one line. The hidden state that
predicts action token t of a row is the one at position start - 1 + t.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coevolve.compute.prefix_tree import Ids, PrefixTree, common, grow, ordered, prefix_length
from coevolve.maths.groups import members
from coevolve.types import Batch


def micro_batches(batch: Batch, micro_tokens: int, uses_prefix_tree: bool) -> list[Tensor]:
    """Return row numbers in groups of at most micro_tokens tokens each (or one row).

    With a prefix tree, rows with a common prefix are grouped and the prefix counts once; else rows of similar length
    are grouped, and padding counts.
    """
    rows, groups = fed(batch), list[list[int]]()
    size, before, ends = 0, -1, list[int]()
    for b in ordered(rows) if uses_prefix_tree else sorted(range(len(rows)), key=lambda b: -len(rows[b])):
        width = len(rows[groups[-1][0]]) if groups else 0  # of the group, without a tree
        new = width
        if groups and uses_prefix_tree:
            new = len(rows[b]) - prefix_length(ends, common(rows[before], rows[b]), len(rows[b]))
        if groups and size + new <= micro_tokens:
            groups[-1].append(b)
            size += new
        else:
            groups.append([b])
            size, ends = len(rows[b]), [len(rows[b])]
        before = b
    return [torch.tensor(sorted(group)) for group in groups]


def whole_groups(batch: Batch, micro_tokens: int) -> list[Tensor]:
    """Return row numbers in groups of at most micro_tokens tokens each that never split rows with the same peers, so
    that a single set of peers may exceed the limit. Common prefixes are counted for every row."""
    length_B, groups, size = batch.length_B.tolist(), list[list[int]](), 0
    for rows in members(batch.peers_B):
        new = sum(length_B[row] for row in rows)
        if groups and size + new <= micro_tokens:
            groups[-1] += rows
            size += new
        else:
            groups.append(list(rows))
            size = new
    return [torch.tensor(sorted(group)) for group in groups]


def fed(batch: Batch) -> list[Ids]:
    """Return the tokens of each row that are fed: all but the last one, which predicts no sampled token."""
    ids_BS = batch.ids_BS.numpy()
    return [ids_BS[b, : length - 1] for b, length in enumerate(batch.length_B.tolist())]


def packed_actions(batch: Batch) -> tuple[PrefixTree, Tensor]:
    """Return the prefix tree of a batch, and the numbers of the packed tokens that predict the action tokens, [N]."""
    tree, start_B = grow(fed(batch)), batch.start_B.tolist()
    where = np.concatenate([leaf.path[start - 1 :] for leaf, start in zip(tree.leaf_B, start_B, strict=True)])
    return tree, torch.from_numpy(where)


def actions(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the action tokens and their rows' temperatures, [N] each, on the device."""
    temperature_BT = batch.temperature_B[:, None].expand(batch.mask_BT.shape)
    return batch.action_BT[batch.mask_BT].to(device), temperature_BT[batch.mask_BT].to(device)


def to_BT(x_N: Tensor, mask_BT: Tensor) -> Tensor:
    """Put one number per action token back in its place, [B, T], 0 outside the mask; differentiable."""
    mask_BT = mask_BT.to(x_N.device)
    return torch.zeros(mask_BT.shape, dtype=x_N.dtype, device=x_N.device).masked_scatter(mask_BT, x_N)
