"""Logits: rounded inputs, and nothing else rounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from policy_cases import Build, make_batch
from torch import nn

from coevolve.compute import linear
from coevolve.compute import lm_head as module
from coevolve.compute import logprobs as head
from coevolve.compute.cpu import prefix_cache as looped
from coevolve.compute.lm_head import outlet
from coevolve.learners import describe as annotate

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
        found_NV = outlet(layer, torch.bfloat16)(hidden_NW)
    assert found_NV.dtype == torch.float32
    torch.testing.assert_close(found_NV, torch.tensor([[257.0, 1.001, -255.75], [-1.5, -1.999, -0.25]]))


@ways
@pytest.mark.parametrize("often", [False, True])
def test_in_float32_nothing_is_rounded(often: bool, way: str) -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.001, 1.0]])
    with computing(torch.float32, way), torch.no_grad():
        found_NV = outlet(layer, torch.float32, often)(torch.tensor([[1.0, 256.0]]))
    torch.testing.assert_close(found_NV, torch.tensor([[257.001]]))


@ways
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 24, 17), (5, 25, 64), (130, 24, 300)])
def test_logits_are_the_product_of_rounded_numbers(rows: int, inputs: int, outputs: int, bias: bool, way: str) -> None:
    torch.manual_seed(0)
    layer, hidden_NW = nn.Linear(inputs, outputs, bias=bias), 3 * torch.randn(rows, inputs)
    with computing(torch.bfloat16, way), torch.no_grad():
        found_NV = outlet(layer, torch.bfloat16)(hidden_NW)
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
        found_NV = outlet(Doubled(), torch.bfloat16, often=True)(torch.tensor([[1.001, 5.0]]))
    torch.testing.assert_close(found_NV, torch.tensor([[2.004002]]))


def test_a_product_with_wide_sums_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, in a PyTorch that is not too old; one that rounds its sums after all is none."""

    def product(x_NI: torch.Tensor, weight_IO: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
        called.append(out_dtype)
        return (x_NI.double() @ weight_IO.double()).to(out_dtype)

    called: list[torch.dtype] = []
    there: Any = SimpleNamespace(type="cuda")
    make, rounds = torch.tensor, lambda *x, out_dtype: product(*x, torch.bfloat16).to(out_dtype)
    monkeypatch.setattr(torch, "tensor", lambda *given, device=None, **settings: make(*given, **settings))
    for mm, right in ((torch.mm, False), (product, True), (rounds, False)):
        monkeypatch.setattr(torch, "mm", mm)
        assert module._sums_wide.__wrapped__(there, torch.bfloat16) is right
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(module, "_sums_wide", lambda *_: True)
    layer, hidden_NW = nn.Linear(2, 3), make([[1.001, 256.0]])
    layer.weight.data, called[:] = make([[1.0, 1.0], [1.001, 0.0], [0.0, -1.0]]), []
    with computing(torch.bfloat16, "PyTorch"), torch.no_grad():
        found_NV = outlet(layer, torch.bfloat16)(hidden_NW)
    assert called == [torch.float32]
    torch.testing.assert_close(found_NV, make([[257.0, 1.0, -256.0]]) + layer.bias.detach())


@ways
@pytest.mark.parametrize("most", [1 << 24, 0])
def test_a_second_gradient_is_the_first(most: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LOGITS_KEPT", most)
    torch.manual_seed(0)
    layer, hidden_NW = nn.Linear(24, 40), torch.randn(70, 24, requires_grad=True)
    with computing(torch.bfloat16, way):
        logp_N, _ = head.action_logps(layer, hidden_NW, torch.arange(70) % 40, torch.ones(70))
        found = [torch.autograd.grad(logp_N.sum(), [hidden_NW, layer.weight], retain_graph=True) for _ in range(2)]
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-2)  # of one product or of pieces


@pytest.mark.parametrize(
    ("settings", "copies"),
    [({"critic": True}, 0), ({"reference": True}, 2), ({"reference": True, "weights": "lora"}, 1)],
)
def test_annotation_copies_no_more_than_it_needs(
    settings: dict[str, Any], copies: int, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(annotate, "outlet", lambda *given: (made.append(given), outlet(*given))[1])
    build_policy(dtype="bfloat16", **settings).annotate(make_batch(4, seed=1))
    assert len(made) == copies


@ways
def test_scores_and_their_gradient_are_those_of_these_logits(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kept probabilities and of those that are made again, several pieces of them."""
    torch.manual_seed(0)
    layer, x_NW, action_N = nn.Linear(24, 40), torch.randn(150, 24), torch.randint(40, (150,))
    temperature_N, weight_N = torch.linspace(0.5, 2, 150), torch.randn(150)
    with computing(torch.bfloat16, way), torch.no_grad():
        wanted_NV = head.log_softmax(outlet(layer, torch.bfloat16), x_NW, temperature_N)
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
