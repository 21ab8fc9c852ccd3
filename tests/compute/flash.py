"""What PyTorch's kernel of FlashAttention computes over sequences of unequal lengths, a sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def one_by_one(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
    scale: float, window_size: tuple[int, int], enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """As the kernel is called for a causal mask whose last query sees the last key."""
    assert window_size == (-1, 0) and cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert enable_gqa == (query.shape[1] != key.shape[1])
    queries, keys = (x.diff().tolist() for x in (cu_seq_q, cu_seq_k))
    assert (max(queries), max(keys)) == (max_q, max_k)
    assert (sum(queries), sum(keys)) == (len(query), len(key))
    found = []
    for q, k, v in zip(query.split(queries), key.split(keys), value.split(keys), strict=True):
        sees = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        given = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = scaled_dot_product_attention(*given, attn_mask=sees, scale=scale, enable_gqa=enable_gqa)
        found.append(out[0].transpose(0, 1))
    return torch.cat(found)
