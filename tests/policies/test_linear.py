"""The oneDNN linear layer is nn.Linear: value, gradients, and everything that looks at its type."""

from __future__ import annotations

import copy

import pytest
import torch
from policy_cases import Build
from torch import nn

from coevolve.policies import linear

needs_onednn = pytest.mark.skipif(not linear.available(), reason="this PyTorch has no oneDNN linear operator")


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 24), (40, 24), (4, 9, 24)])
def test_values_and_gradients_are_those_of_linear(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(24, 17, bias=bias)
    fast = copy.deepcopy(plain)
    linear.use_onednn(nn.Sequential(fast))
    assert isinstance(fast, linear.FastLinear) and isinstance(copy.deepcopy(fast), linear.FastLinear)
    x, x_fast = (torch.arange(24.0).sin().expand(shape).clone().mul_(torch.rand(1)).requires_grad_() for _ in range(2))
    x_fast.data.copy_(x.data)
    y, y_fast = plain(x), fast(x_fast)
    torch.testing.assert_close(y_fast, y)
    weight = torch.randn(y.shape)
    (y * weight).sum().backward()
    (y_fast * weight).sum().backward()
    torch.testing.assert_close(x_fast.grad, x.grad)
    for p, q in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_autocast_and_other_dtypes_go_the_default_way() -> None:
    layer = nn.Linear(8, 8)
    linear.use_onednn(nn.Sequential(layer))
    x = torch.randn(32, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert copy.deepcopy(layer).double()(x.double()).dtype == torch.float64


def test_without_the_operator_nothing_changes(build_policy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> torch.Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(linear, "_product", missing)
    linear.available.cache_clear()
    try:
        causal = build_policy().weights.shared.causal
        assert not any(isinstance(module, linear.FastLinear) for module in causal.modules())
        assert torch.isfinite(causal(input_ids=torch.arange(40)[None]).logits).all()
    finally:
        linear.available.cache_clear()
