"""Logits: rounded inputs, and nothing else rounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from coevolve.policies import head, linear, looped
from coevolve.policies.outlet import outlet

needs_loops = pytest.mark.skipif(looped.module() is None, reason="numba is not installed")
ways = pytest.mark.parametrize("way", ["PyTorch", "oneDNN", pytest.param("loops", marks=needs_loops)])


@contextmanager
def computing(dtype: torch.dtype, way: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, looped.tried(way == "loops"):
        if way == "PyTorch":
            patch.setattr(linear, "available", lambda _: False)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            yield


@ways
def test_in_bfloat16_what_is_multiplied_is_rounded_and_sums_and_biases_are_not(way: str) -> None:
    """Bfloat16 has 1 and 1.0078 but nothing between, 256 and 258 but not 257."""
    layer = nn.Linear(2, 3)
    layer.weight.data = torch.tensor([[1.0, 1.0], [1.001, 0.0], [0.0, -1.0]])
    layer.bias.data = torch.tensor([0.0, 0.001, 0.25])
    hidden_NW = torch.tensor([[1.001, 256.0], [-2.0, 0.5]])
    with computing(torch.bfloat16, way), torch.no_grad():
        found_NV = outlet(layer)(hidden_NW)
    assert found_NV.dtype == torch.float32
    torch.testing.assert_close(found_NV, torch.tensor([[257.0, 1.001, -255.75], [-1.5, -1.999, -0.25]]))


@ways
@pytest.mark.parametrize("often", [False, True])
def test_in_float32_nothing_is_rounded(often: bool, way: str) -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.001, 1.0]])
    with computing(torch.float32, way), torch.no_grad():
        torch.testing.assert_close(outlet(layer, often)(torch.tensor([[1.0, 256.0]])), torch.tensor([[257.001]]))


@ways
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 24, 17), (5, 25, 64), (130, 24, 300)])
def test_logits_are_the_product_of_rounded_numbers(rows: int, inputs: int, outputs: int, bias: bool, way: str) -> None:
    torch.manual_seed(0)
    layer, hidden_NW = nn.Linear(inputs, outputs, bias=bias), 3 * torch.randn(rows, inputs)
    with computing(torch.bfloat16, way), torch.no_grad():
        found_NV = outlet(layer)(hidden_NW)
    hidden, weight = (x.detach().bfloat16().double() for x in (hidden_NW, layer.weight))
    wanted_NV = hidden @ weight.t() + (layer.bias.detach().double() if bias else 0)
    torch.testing.assert_close(found_NV.double(), wanted_NV, rtol=1e-5, atol=1e-5)


def test_more_than_a_matrix_computes_in_float32() -> None:
    """As an output layer with adapters does, of which nobody knows the inside."""

    class Doubled(nn.Module):
        weight = torch.tensor([[1.001, 0.0]])

        def forward(self, hidden_NW: torch.Tensor) -> torch.Tensor:
            return 2 * hidden_NW @ self.weight.t()

    with computing(torch.bfloat16, "PyTorch"):
        torch.testing.assert_close(outlet(Doubled(), often=True)(torch.tensor([[1.001, 5.0]])), torch.tensor([[2.004]]))


@ways
def test_scores_and_their_gradient_are_those_of_these_logits(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kept probabilities and of those that are made again, several pieces of them."""
    torch.manual_seed(0)
    layer, x_NW, action_N = nn.Linear(24, 40), torch.randn(150, 24), torch.randint(40, (150,))
    temperature_N, weight_N = torch.linspace(0.5, 2, 150), torch.randn(150)
    with computing(torch.bfloat16, way), torch.no_grad():
        wanted_NV = head.log_softmax(outlet(layer), x_NW, temperature_N)
    p_NV = wanted_NV.exp()
    dz_NV = (nn.functional.one_hot(action_N, 40) - p_NV) * (weight_N / temperature_N)[:, None]
    for most in (1 << 24, 0):
        monkeypatch.setattr(head, "LOGITS_KEPT", most)
        layer.zero_grad()
        hidden_NW = x_NW.clone().requires_grad_()
        with computing(torch.bfloat16, way):
            logp_N, entropy_N = head.action_logps(layer, hidden_NW, action_N, temperature_N)
            (logp_N * weight_N).sum().backward()
        torch.testing.assert_close(logp_N, wanted_NV.gather(1, action_N[:, None])[:, 0])
        torch.testing.assert_close(entropy_N, -(p_NV * wanted_NV).sum(1))
        for found, wanted in (
            (hidden_NW.grad, dz_NV @ layer.weight.detach().bfloat16().float()),
            (layer.weight.grad, dz_NV.t() @ x_NW.bfloat16().float()),
            (layer.bias.grad, dz_NV.sum(0)),
        ):
            assert float((found - wanted).norm() / wanted.norm()) < 5e-3, "a bfloat16 has steps of 0.4 %"
