"""The oneDNN linear layer is nn.Linear: value, gradients, and everything that looks at its type."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
from policy_cases import Build
from torch import nn
from torch.nn import functional

from coevolve.compute import linear
from coevolve.compute.linear import side_by_side, use_fast_linear

needs_onednn = pytest.mark.skipif(not linear.available(), reason="this PyTorch has no oneDNN linear operator")


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [17, 24, 33])
@pytest.mark.parametrize("shape", [(3, 24), (40, 24), (4, 9, 24)])
def test_values_and_gradients_are_those_of_linear(shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(24, outputs, bias=bias)
    fast = copy.deepcopy(plain)
    linear.use_fast_linear(nn.Sequential(fast))
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
def test_a_gradient_that_is_one_number_in_memory() -> None:
    """As a sum's is: expanded, with strides of 0."""
    layer = nn.Linear(24, 33)
    linear.use_fast_linear(nn.Sequential(layer))
    x = torch.arange(24.0).sin().expand(40, 24)
    layer(x).sum().backward()
    assert layer.weight.grad is not None and layer.bias.grad is not None
    torch.testing.assert_close(layer.weight.grad, 40 * x[:1].expand(33, 24))
    torch.testing.assert_close(layer.bias.grad, torch.full((33,), 40.0))


@needs_onednn
def test_autocast_and_other_dtypes_go_the_default_way() -> None:
    layer = nn.Linear(8, 8)
    linear.use_fast_linear(nn.Sequential(layer))
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
        ids = torch.arange(40)[None]
        before = causal(input_ids=ids).logits
        with linear.packed(causal, torch.float32, None):
            torch.testing.assert_close(causal(input_ids=ids).logits, before)
    finally:
        linear.available.cache_clear()


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 64, 200])
def test_packed_layers_give_the_same_and_forget_afterwards(rows: int, bias: bool) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(24, 17, bias=bias)
    linear.use_fast_linear(layer)
    x = torch.randn(rows, 24)
    before = layer(x)
    with torch.no_grad(), linear.packed(layer, torch.float32, None):
        torch.testing.assert_close(layer(x), before)
        layer.weight.add_(1.0)  # not allowed, and so not seen
        torch.testing.assert_close(layer(x), before)
    assert not torch.allclose(layer(x), before)
    with torch.no_grad(), linear.packed(layer, torch.bfloat16, None):
        assert layer(x).dtype == torch.bfloat16
        torch.testing.assert_close(
            layer(x).float(), functional.linear(x, layer.weight, layer.bias), rtol=0.05, atol=0.1
        )


def test_an_error_inside_leaves_layers_as_they_were() -> None:
    layer = nn.Linear(4, 4)
    linear.use_fast_linear(layer)
    with pytest.raises(KeyError), linear.packed(layer, torch.float32, None):
        raise KeyError
    assert layer.packed is None


@needs_onednn
def test_it_does_not_matter_who_asks_first() -> None:
    linear.available.cache_clear()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear.available()


def test_an_interrupt_while_packing_leaves_layers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    linear.use_fast_linear(layers)
    packed = linear.laid_out

    def interrupted(layer: list[nn.Linear], dtype: torch.dtype, compiled: None) -> object:
        if layer[0] is layers[1]:
            raise KeyboardInterrupt
        return packed(layer, dtype, compiled)

    monkeypatch.setattr(linear, "laid_out", interrupted)
    with pytest.raises(KeyboardInterrupt), linear.packed(layers, torch.float32, None):
        pass
    assert all(layer.packed is None for layer in layers)


OLDER = """
import torch
from torch import nn
from coevolve.policies import linear
from coevolve.compute.logprobs import action_logps

layer, hidden = nn.Linear(96, 128), torch.randn(64, 96)
linear.use_fast_linear(nn.Sequential(layer))
with linear.packed(layer, torch.bfloat16, None), torch.inference_mode():
    assert layer(hidden).dtype == torch.bfloat16
with torch.autocast("cpu", dtype=torch.bfloat16):
    logp, _ = action_logps(layer, hidden, torch.arange(64), torch.ones(64))
logp.sum().backward()
assert layer.weight.grad.isfinite().all() and layer.weight.grad.any()
"""


@pytest.mark.slow
def test_a_processor_without_bfloat16_computes_it_the_default_way() -> None:
    """oneDNN has it from AVX-512 on, and raises on others."""
    older = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", OLDER], env=older, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_layers_side_by_side_may_have_biases_or_not() -> None:
    torch.manual_seed(0)
    x_NI = torch.randn(20, 12, requires_grad=True)
    for biases in ((True, False, True), (False, True), (False, False), (True,), (False,)):
        layers = [nn.Linear(12, 5 + i, bias=bias) for i, bias in enumerate(biases)]
        use_fast_linear(nn.ModuleList(layers))
        found, right = side_by_side(layers, x_NI), torch.cat([layer(x_NI) for layer in layers], 1)
        torch.testing.assert_close(found, right)
        inputs = [x_NI, *(p for layer in layers for p in layer.parameters())]
        weights = torch.randn(found.shape)
        ours, theirs = (torch.autograd.grad((y * weights).sum(), inputs) for y in (found, right))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
