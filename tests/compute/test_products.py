"""Products of updates by oneDNN are those of PyTorch: values, gradients, and where there is no such operator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from policy_cases import Build, make_batch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("numba")  # without it nobody uses them
products: Any = pytest.importorskip("coevolve.compute.cpu.products")

needs_onednn = pytest.mark.skipif(
    not products.right(torch.float32), reason="this PyTorch has no oneDNN linear operator"
)


@pytest.fixture(autouse=True)
def not_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process on a processor with AVX-512, not Intel's, that has not yet asked what there is."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(products, "intel", lambda: False)
    products.available.cache_clear()
    yield
    products.available.cache_clear()


@pytest.mark.parametrize(("capability", "intel"), [("AVX2", False), ("AVX2", True), ("AVX512", True)])
def test_with_shorter_vectors_and_on_intels_processors_products_are_pytorchs(
    capability: str, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(products, "intel", lambda: intel)
    shapes = counted(monkeypatch)
    layer, x = nn.Linear(24, 33), torch.randn(40, 24)
    torch.testing.assert_close(products.linear(x, layer.weight, layer.bias), layer(x))
    assert shapes == [] and not products.available(torch.float32)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN is given from now on."""
    shapes, honest = list[tuple[int, ...]](), products._product

    def product(x: Tensor, *given: Any) -> Any:
        shapes.append(tuple(x.shape))
        return honest(x, *given)

    monkeypatch.setattr(products, "_product", product)
    return shapes


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [17, 24, 33])
@pytest.mark.parametrize(("shape", "many"), [((3, 24), False), ((40, 24), True), ((4, 9, 24), True)])
def test_values_and_gradients_are_those_of_linear(
    shape: tuple[int, ...], many: bool, outputs: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer, x, shapes = nn.Linear(24, outputs, bias=bias), torch.randn(shape, requires_grad=True), counted(monkeypatch)
    found, right = products.linear(x, layer.weight, layer.bias), layer(x)
    assert bool(shapes) == many, "few rows are as fast without"
    torch.testing.assert_close(found, right)
    with torch.no_grad():
        torch.testing.assert_close(products.linear(x, layer.weight, layer.bias), right)
    weight, inputs = torch.randn(right.shape), [x, *layer.parameters()]
    ours, theirs = (torch.autograd.grad((y * weight).sum(), inputs) for y in (found, right))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_what_needs_no_gradient_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a base's weights under adapters: one product back instead of two."""
    layer, x = nn.Linear(24, 33).requires_grad_(False), torch.randn(40, 24, requires_grad=True)
    found = products.linear(x, layer.weight, layer.bias)
    shapes = counted(monkeypatch)
    found.sum().backward()
    assert shapes == [(40, 33)] and layer.weight.grad is None and layer.bias.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(40, 24))


@needs_onednn
def test_a_gradient_that_is_one_number_in_memory() -> None:
    """As a sum's is: expanded, with strides of 0."""
    layer, x = nn.Linear(24, 33), torch.arange(24.0).sin().expand(40, 24)
    products.linear(x, layer.weight, layer.bias).sum().backward()
    assert layer.weight.grad is not None and layer.bias.grad is not None
    torch.testing.assert_close(layer.weight.grad, 40 * x[:1].expand(33, 24))
    torch.testing.assert_close(layer.bias.grad, torch.full((33,), 40.0))


@needs_onednn
def test_autocast_and_other_dtypes_go_the_default_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, shapes = nn.Linear(8, 8), torch.randn(32, 8), counted(monkeypatch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.linear(x, layer.weight, layer.bias).dtype == torch.bfloat16
    layer.double()
    assert products.linear(x.double(), layer.weight, layer.bias).dtype == torch.float64
    assert shapes == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("left", "right"), [(17, 40), (40, 17), (24, 24)])
def test_the_inner_product_whichever_side_is_smaller(left: int, right: int, dtype: torch.dtype) -> None:
    """And whether or not there are gaps between the rows of either."""
    torch.manual_seed(0)
    a_NO, b_NI = (torch.randn(90, 2 * size).to(dtype)[:, ::2] for size in (left, right))
    exact = a_NO.double().t() @ b_NI.double()
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-8, "atol": 2**-8}
    for a, b in ((a_NO, b_NI), (a_NO.contiguous(), b_NI.contiguous())):
        found = products.inner(a, b)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 40])
def test_a_product_without_gradient(rows: int, dtype: torch.dtype) -> None:
    """The weights as they lie, and turned, as a gradient takes them."""
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 24).to(dtype), torch.randn(33, 24).to(dtype)
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-6}
    for laid in (weight, weight.t().contiguous().t()):
        torch.testing.assert_close(products.times(x, laid).double(), x.double() @ laid.double().t(), **near)


def test_without_the_operator_nothing_changes(build_policy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Tensor:
        raise AttributeError("no such operator")

    policy, batch = build_policy(compute="cpu"), make_batch(9, seed=1)

    def found() -> list[Tensor]:
        out = policy.outputs(batch)
        for parameter in policy.parameters:
            parameter.grad = None
        (out.logp_BT.sum() + out.entropy_BT.sum()).backward()
        return [out.logp_BT.detach(), out.entropy_BT.detach(), *(p.grad.clone() for p in policy.parameters)]

    right = found()
    monkeypatch.setattr(products, "_product", missing)
    products.available.cache_clear()
    assert not products.available(torch.float32) and not products.available(torch.bfloat16)
    for ours, theirs in zip(found(), right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_an_operator_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_product", lambda *given: 1.001 * functional.linear(*given))
    assert not products.available(torch.float32)


@needs_onednn
def test_it_does_not_matter_who_asks_first() -> None:
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.available(torch.float32)


OLDER = """
import torch
from torch import nn
from coevolve.compute.cpu.backend import OPERATIONS
from coevolve.compute.logprobs import action_logps

layer, hidden = nn.Linear(96, 128), torch.randn(64, 96)
with torch.autocast("cpu", dtype=torch.bfloat16):
    logp, entropy = action_logps(layer, hidden, torch.arange(64), torch.ones(64), OPERATIONS)
(logp + entropy).sum().backward()
assert layer.weight.grad.isfinite().all() and layer.weight.grad.any()
"""


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
        found = products.side_by_side(layers, x_NI, None)
        right = torch.cat([layer(x_NI) for layer in layers], 1)
        torch.testing.assert_close(found, right)
        inputs = [x_NI, *(p for layer in layers for p in layer.parameters())]
        weights = torch.randn(found.shape)
        ours, theirs = (torch.autograd.grad((y * weights).sum(), inputs) for y in (found, right))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
