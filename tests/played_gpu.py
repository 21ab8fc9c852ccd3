"""PyTorch's attention operators for GPUs, played on the CPU: what their source takes for granted is demanded here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

FORWARD = "_scaled_dot_product_efficient_attention"
BACKWARD = "_scaled_dot_product_efficient_attention_backward"


def play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators be these."""
    monkeypatch.setattr(torch.ops.aten, FORWARD, forward)
    monkeypatch.setattr(torch.ops.aten, BACKWARD, backward)


@torch.autocast("cpu", enabled=False)  # which looks at public functions only
def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, with_lse: bool, dropout: float, causal: bool, *, scale: float
) -> tuple[Tensor, ...]:
    """Writes [M, Q, H, D], shown as [M, H, Q, D], and log-sum-exps filled up to a multiple of 32."""
    _demand(q, k, v, mask)
    assert with_lse and dropout == 0
    score = _scores(q, k, mask, causal, scale)
    lse = score.logsumexp(-1)
    out = ((score - lse.unsqueeze(-1)).exp() @ v.float()).to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    none = torch.zeros((), dtype=torch.long)
    return out, pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf), none, none


@torch.autocast("cpu", enabled=False)
def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, lse: Tensor, seed: Tensor,
    offset: Tensor, dropout: float, wanted: list[bool], causal: bool, *, scale: float,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    _demand(q, k, v, mask)
    assert grad.shape == q.shape and grad.dtype == q.dtype and dropout == 0 and wanted == [True, True, True, False]
    assert out.transpose(1, 2).is_contiguous() and out.dtype == q.dtype, "its rows are looked for there"
    queries = q.shape[2]
    assert lse.shape == (*q.shape[:2], -(-queries // 32) * 32) and lse.stride(-1) == 1 and lse.dtype == torch.float32
    assert bool(lse[..., queries:].isposinf().all())
    p = (_scores(q, k, mask, causal, scale) - lse[..., :queries, None]).exp()
    inner = (grad.float() * out.float()).sum(-1, keepdim=True)
    dscore = p * (grad.float() @ v.float().transpose(-1, -2) - inner) * scale
    found = (dscore @ k.float(), dscore.transpose(-1, -2) @ q.float(), p.transpose(-1, -2) @ grad.float())
    return *(x.to(q.dtype) for x in found), None


def _demand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    assert q.dtype == k.dtype == v.dtype and q.shape[:2] == k.shape[:2] and k.shape == v.shape
    assert all(x.stride(-1) == 1 for x in (q, k, v))
    if mask is not None:
        assert mask.shape == (*q.shape[:3], k.shape[2]) and mask.dtype == q.dtype
        assert mask.stride(-1) == 1 and all(stride % 16 == 0 for stride in mask.stride()[:-1]), "read 16 at a time"


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    score = q.float() @ k.float().transpose(-1, -2) * scale
    if mask is not None:
        score = score + mask
    if causal:
        assert q.shape[2] == k.shape[2]
        score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return score
