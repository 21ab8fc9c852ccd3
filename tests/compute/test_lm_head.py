"""Logits: rounded inputs, and nothing else rounded."""

from __future__ import annotations

import importlib
import importlib.util
import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from policy_cases import Build, make_batch
from torch import Tensor, nn

from coevolve.compute import logprobs
from coevolve.compute.logprobs import Operations, action_logps, log_softmax, pieces
from coevolve.compute.torch_backend import TorchBackend
from coevolve.interfaces import Reference
from coevolve.runtime import processor


@pytest.fixture(params=["torch", "torch, bfloat16 in float32", "cpu", "cpu without oneDNN"])
def use(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Operations:
    """What each backend makes log-probabilities with, and what gradients are multiplied in."""
    least = 0 if "in float32" in request.param else math.inf
    monkeypatch.setattr(processor, "_least_rows", lambda kept: least)
    if request.param.startswith("torch"):
        return logprobs.PLAIN
    if importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed")
    if request.param == "cpu without oneDNN":
        monkeypatch.setattr(importlib.import_module("coevolve.compute.cpu.products"), "available", lambda _: False)
    found: Operations = importlib.import_module("coevolve.compute.cpu.backend").OPERATIONS
    return found


def computing(dtype: torch.dtype) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def test_in_bfloat16_what_is_multiplied_is_rounded_and_sums_and_biases_are_not(use: Operations) -> None:
    """Bfloat16 has 1 and 1.0078 but nothing between, 256 and 258 but not 257."""
    layer = nn.Linear(2, 3)
    layer.weight.data = torch.tensor([[1.0, 1.0], [1.001, 0.0], [0.0, -1.0]])
    layer.bias.data = torch.tensor([0.0, 0.001, 0.25])
    hidden_NW = torch.tensor([[1.001, 256.0], [-2.0, 0.5]])
    with computing(torch.bfloat16), torch.no_grad():
        found_NV = use.lm_head(layer, torch.bfloat16)(hidden_NW)
    assert found_NV.dtype == torch.float32
    torch.testing.assert_close(found_NV, torch.tensor([[257.0, 1.001, -255.75], [-1.5, -1.999, -0.25]]))


@pytest.mark.parametrize("rows", [1, 20])
def test_in_float32_nothing_is_rounded(rows: int, use: Operations) -> None:
    """Whatever else is computed in meanwhile."""
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.001, 1.0]])
    for dtype in (torch.float32, torch.bfloat16):
        with computing(dtype), torch.no_grad():
            found_NV = use.lm_head(layer, torch.float32)(torch.tensor([[1.0, 256.0]]).expand(rows, -1))
        torch.testing.assert_close(found_NV, torch.tensor([[257.001]]).expand(rows, -1))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 24, 17), (5, 26, 64), (130, 24, 300)])
def test_logits_are_the_product_of_rounded_numbers(
    rows: int, inputs: int, outputs: int, bias: bool, use: Operations
) -> None:
    torch.manual_seed(0)
    layer, hidden_NW = nn.Linear(inputs, outputs, bias=bias), 3 * torch.randn(rows, inputs)
    with computing(torch.bfloat16), torch.no_grad():
        found_NV = use.lm_head(layer, torch.bfloat16)(hidden_NW)
    hidden, weight = (x.detach().bfloat16().double() for x in (hidden_NW, layer.weight))
    wanted_NV = hidden @ weight.t() + (layer.bias.detach().double() if bias else 0)
    torch.testing.assert_close(found_NV.double(), wanted_NV, rtol=1e-5, atol=1e-5)


def test_more_than_a_matrix_computes_in_float32(use: Operations) -> None:
    """As an output layer with adapters does, of which nobody knows the inside."""

    class Doubled(nn.Module):
        weight = torch.tensor([[1.001, 0.0]])

        def forward(self, hidden_NW: Tensor) -> Tensor:
            return 2 * hidden_NW @ self.weight.t()

    with computing(torch.bfloat16):
        found_NV = use.lm_head(Doubled(), torch.bfloat16)(torch.tensor([[1.001, 5.0]]))
    torch.testing.assert_close(found_NV, torch.tensor([[2.004002]]))


def test_a_product_with_wide_sums_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, in a PyTorch that is not too old; one that rounds its sums after all is none."""

    def product(x_NI: Tensor, weight_IO: Tensor, out_dtype: torch.dtype) -> Tensor:
        called.append(out_dtype)
        return (x_NI.double() @ weight_IO.double()).to(out_dtype)

    called: list[torch.dtype] = []
    there: Any = SimpleNamespace(type="cuda")
    make, rounds = torch.tensor, lambda *x, out_dtype: product(*x, torch.bfloat16).to(out_dtype)
    monkeypatch.setattr(torch, "tensor", lambda *given, device=None, **settings: make(*given, **settings))
    for mm, right in ((torch.mm, False), (product, True), (rounds, False)):
        monkeypatch.setattr(torch, "mm", mm)
        with nullcontext() if right else pytest.warns(UserWarning, match="no product of torch.bfloat16"):
            assert logprobs._sums_wide.__wrapped__(there, torch.bfloat16) is right
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(logprobs, "_sums_wide", lambda *_: True)
    layer, hidden_NW = nn.Linear(2, 3), make([[1.001, 256.0]])
    layer.weight.data, called[:] = make([[1.0, 1.0], [1.001, 0.0], [0.0, -1.0]]), []
    with computing(torch.bfloat16), torch.no_grad():
        found_NV = logprobs.lm_head(layer, torch.bfloat16)(hidden_NW)
    assert called == [torch.float32]
    torch.testing.assert_close(found_NV, make([[257.0, 1.0, -256.0]]) + layer.bias.detach())


@pytest.mark.parametrize("most", [1 << 24, 0])
def test_a_second_gradient_is_the_first(most: int, use: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "LOGITS_KEPT", most)
    torch.manual_seed(0)
    layer, hidden_NW = nn.Linear(24, 40), torch.randn(70, 24, requires_grad=True)
    with computing(torch.bfloat16):
        logp_N, entropy_N = action_logps(layer, hidden_NW, torch.arange(70) % 40, torch.ones(70), use)
        total = logp_N.sum() + 0.5 * entropy_N.sum()
        found = [torch.autograd.grad(total, [hidden_NW, layer.weight], retain_graph=True) for _ in range(2)]
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-2)  # of one product or of pieces


@pytest.mark.parametrize(
    ("settings", "copies"),
    [({"critic": True}, 0), ({"reference": True}, 2), ({"reference": True, "weights": "lora"}, 1)],
)
def test_annotation_copies_no_more_than_it_needs(
    settings: dict[str, Any], copies: int, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, honest = [], TorchBackend.lm_head
    policy = build_policy(dtype="bfloat16", compute="torch", **settings)
    monkeypatch.setattr(TorchBackend, "lm_head", lambda *given: (made.append(given), honest(*given))[1])
    policy.describe(make_batch(4, seed=1))
    assert len(made) == copies


def test_scores_and_their_gradient_are_those_of_these_logits(use: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kept probabilities and of those that are made again, several pieces of them."""
    torch.manual_seed(0)
    layer, x_NW, action_N = nn.Linear(24, 40), torch.randn(150, 24), torch.randint(40, (150,))
    temperature_N, (weight_N, bonus_N) = torch.linspace(0.5, 2, 150), torch.randn(2, 150)
    with computing(torch.bfloat16), torch.no_grad():
        wanted_NV = log_softmax(use.lm_head(layer, torch.bfloat16), x_NW, temperature_N)
    p_NV = wanted_NV.exp()
    entropy_N1 = -(p_NV * wanted_NV).sum(1, keepdim=True)
    dz_NV = (nn.functional.one_hot(action_N, 40) - p_NV) * (weight_N / temperature_N)[:, None]
    dz_NV -= p_NV * (wanted_NV + entropy_N1) * (bonus_N / temperature_N)[:, None]
    for most in (1 << 24, 0):
        monkeypatch.setattr(logprobs, "LOGITS_KEPT", most)
        layer.zero_grad()
        hidden_NW = x_NW.clone().requires_grad_()
        with computing(torch.bfloat16):
            logp_N, entropy_N = action_logps(layer, hidden_NW, action_N, temperature_N, use)
            (logp_N * weight_N + entropy_N * bonus_N).sum().backward()
        torch.testing.assert_close(logp_N, wanted_NV.gather(1, action_N[:, None])[:, 0])
        torch.testing.assert_close(entropy_N, entropy_N1[:, 0])
        for found, wanted in (
            (hidden_NW.grad, dz_NV @ layer.weight.detach().bfloat16().float()),
            (layer.weight.grad, dz_NV.t() @ x_NW.bfloat16().float()),
            (layer.bias.grad, dz_NV.sum(0)),
        ):
            assert float((found - wanted).norm() / wanted.norm()) < 5e-3, "a bfloat16 has steps of 0.4 %"


LOGITS = torch.tensor([[0.0, 0.5, 0.25, 0.25], [1.0, 1.0, 1.0, 1.0]]).log()
"""With one logit of minus infinity, and all alike."""


@pytest.mark.parametrize("most", [1 << 24, 0])
def test_the_gradient_of_an_entropy_literally(most: int, use: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    """d H / d z = -p (log p + H) / T. With p = (0, 1/2, 1/4, 1/4): H = 3/2 log 2, log p + H = log 2 times (-, 1/2,
    -1/2, -1/2), and the gradient is log 2 times (0, -1/4, 1/8, 1/8). Of equal probabilities it is 0."""
    monkeypatch.setattr(logprobs, "LOGITS_KEPT", most)
    layer, log2 = nn.Linear(4, 4, bias=False), 0.6931471805599453
    layer.weight.data = torch.eye(4)
    for temperature in (1.0, 2.0):
        z_NV = (temperature * LOGITS.clamp(min=-300)).requires_grad_()
        _, entropy_N = action_logps(layer, z_NV, torch.tensor([1, 1]), torch.full((2,), temperature), use)
        torch.testing.assert_close(entropy_N, torch.tensor([1.5 * log2, 2 * log2]))
        (found_NV,) = torch.autograd.grad(entropy_N.sum(), z_NV)
        wanted_NV = log2 / temperature * torch.tensor([[0, -1 / 4, 1 / 8, 1 / 8], [0, 0, 0, 0]])
        torch.testing.assert_close(found_NV, wanted_NV, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wanted", ["logp", "entropy", "both", "neither's whole"])
@pytest.mark.parametrize("most", [1 << 24, 0])
def test_gradients_are_those_that_autograd_finds(
    wanted: str, most: int, use: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the one, of the other, of both; several pieces, more tokens than a round number of them."""
    monkeypatch.setattr(logprobs, "LOGITS_KEPT", most)
    monkeypatch.setattr(logprobs, "LEAST_ROWS", 48)
    monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", 1)
    torch.manual_seed(0)
    layer, hidden_NW, action_N = nn.Linear(24, 40), 3 * torch.randn(150, 24), torch.randint(40, (150,))
    temperature_N, (a_N, b_N) = torch.linspace(0.3, 2, 150), torch.randn(2, 150)
    if wanted == "neither's whole":  # some tokens count for nothing, as those of other rows do
        a_N[::3], b_N[1::3] = 0, 0
    hidden_NW.requires_grad_()

    def loss(logp_N: Tensor, entropy_N: Tensor) -> Tensor:
        total = torch.zeros(())
        total = total if wanted == "entropy" else total + (a_N * logp_N).sum()
        return total if wanted == "logp" else total + (b_N * entropy_N).sum()

    inputs = [hidden_NW, *layer.parameters()]
    found = action_logps(layer, hidden_NW, action_N, temperature_N, use)
    logp_NV = (layer(hidden_NW) / temperature_N[:, None]).log_softmax(-1)
    right = logp_NV.gather(1, action_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(1)
    for ours, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(*(torch.autograd.grad(loss(*x), inputs) for x in (found, right)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("most", [1 << 24, 0])
def test_the_gradient_of_a_kl_literally(most: int, use: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    """d K / d z = p (log p - log q - K) / T. p = (1/2, 1/4, 1/4) and q even at T 1: K = 1/2 log 3/2 + 1/2 log 3/4 =
    log 3 - 3/2 log 2, log p - log q - K = (1/2, -1/2, -1/2) log 2, and the gradient is (1/4, -1/8, -1/8) log 2."""
    monkeypatch.setattr(logprobs, "LOGITS_KEPT", most)
    layer, log2, log3 = nn.Linear(3, 3, bias=False), 0.6931471805599453, 1.0986122886681098
    layer.weight.data = torch.eye(3)
    for temperature in (1.0, 2.0):
        z_NV = (temperature * torch.tensor([[0.5, 0.25, 0.25]]).log()).requires_grad_()
        even = Reference(torch.zeros(1, 3), lambda hidden_NW: hidden_NW)
        *_, kl_N = action_logps(layer, z_NV, torch.tensor([1]), torch.full((1,), temperature), use, even)
        torch.testing.assert_close(kl_N, torch.tensor([log3 - 1.5 * log2]))
        (found_NV,) = torch.autograd.grad(kl_N.sum(), z_NV)
        torch.testing.assert_close(found_NV, log2 / temperature * torch.tensor([[1 / 4, -1 / 8, -1 / 8]]))


@pytest.mark.parametrize("wanted", ["kl", "kl and logp", "all"])
@pytest.mark.parametrize("most", [1 << 24, 0])
def test_the_gradient_of_a_kl_is_what_autograd_finds(
    wanted: str, most: int, use: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "LOGITS_KEPT", most)
    monkeypatch.setattr(logprobs, "LEAST_ROWS", 48)
    monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", 1)
    torch.manual_seed(0)
    layer, other, action_N = nn.Linear(24, 40), nn.Linear(16, 40).requires_grad_(False), torch.randint(40, (150,))
    hidden_NW, ref_NW = (3 * torch.randn(150, 24)).requires_grad_(), 3 * torch.randn(150, 16)
    temperature_N, weights = torch.linspace(0.3, 2, 150), torch.randn(3, 150)
    weights[0] *= wanted != "kl"
    weights[1] *= wanted == "all"
    found = action_logps(layer, hidden_NW, action_N, temperature_N, use, Reference(ref_NW, other))
    logp_NV = (layer(hidden_NW) / temperature_N[:, None]).log_softmax(-1)
    q_NV = (other(ref_NW) / temperature_N[:, None]).log_softmax(-1)
    p_NV = logp_NV.exp()
    right = (logp_NV.gather(1, action_N[:, None])[:, 0], -(p_NV * logp_NV).sum(1), (p_NV * (logp_NV - q_NV)).sum(1))
    for ours, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    used = [i for i in range(3) if weights[i].any()]  # of the others there is no gradient at all
    losses = [torch.stack([(weights[i] * one[i]).sum() for i in used]).sum() for one in (found, right)]
    inputs = [hidden_NW, *layer.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("least", [0, math.inf])
def test_a_gradient_is_multiplied_in_what_is_faster(least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX2 alone 128 rows of a vocabulary of 49,152 took 65 s in bfloat16 and 0.12 s in float32."""
    monkeypatch.setattr(processor, "_least_rows", lambda kept: least)
    seen: list[torch.dtype] = []

    def times(x: Tensor, weight: Tensor) -> Tensor:
        seen.extend((x.dtype, weight.dtype))
        return x @ weight.t()

    layer, hidden_NW = nn.Linear(4, 9).requires_grad_(False), torch.randn(3, 4, requires_grad=True)
    with computing(torch.bfloat16):
        use = logprobs.PLAIN._replace(times=times)
        logp_N, _ = action_logps(layer, hidden_NW, torch.tensor([1, 5, 8]), torch.ones(3), use)
    logp_N.sum().backward()
    assert set(seen) == {torch.float32 if least == 0 else torch.bfloat16}


def test_a_head_that_is_not_trained_has_no_gradient_and_hands_one_on(use: Operations) -> None:
    """As a base's under adapters."""
    layer, hidden_NW = nn.Linear(24, 40).requires_grad_(False), torch.randn(9, 24, requires_grad=True)
    logp_N, entropy_N = action_logps(layer, hidden_NW, torch.arange(9), torch.ones(9), use)
    (logp_N + entropy_N).sum().backward()
    assert layer.weight.grad is None and hidden_NW.grad is not None and hidden_NW.grad.any()


def test_where_nothing_is_learnt_no_probabilities_are_kept(use: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the weights are those of a policy that learns."""
    kept, forward = list[bool](), logprobs._ActionLogps.forward

    def noted(ctx: Any, *given: Any) -> Any:
        found = forward(ctx, *given)
        kept.append(ctx.kept_NV is not None)
        return found

    monkeypatch.setattr(logprobs._ActionLogps, "forward", staticmethod(noted))
    layer, hidden_NW = nn.Linear(24, 40), torch.randn(9, 24)
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            action_logps(layer, hidden_NW, torch.arange(9), torch.ones(9), use)
    assert kept == [True, False]


def test_a_gpu_makes_logits_of_more_tokens_at_a_time() -> None:
    """Of 5,000 tokens and a vocabulary of 151,936, where a processor's cache would have a few."""
    sizes = {kind: [len(range(5000)[p]) for p in pieces(5000, 151936, torch.device(kind))] for kind in ("cpu", "cuda")}
    assert sizes["cuda"] == [2048, 2048, 904]
    assert sizes["cpu"] == [128] * 39 + [8]


def test_a_device_without_the_product_of_the_output_layer_is_told_of() -> None:
    logprobs._sums_wide.cache_clear()
    with pytest.warns(UserWarning, match="no product of torch.bfloat16 with float32 sums on meta; the output layer"):
        assert not logprobs._sums_wide(torch.device("meta"), torch.bfloat16)
