"""The written-out forward of updates, and its gradient, against transformers' modules and against plain formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_families import FAMILIES, model, ready, some_tree
from policy_cases import Build, make_batch, shaken
from torch import Tensor
from torch.nn import functional

from coevolve.compute.attention import PathAttention
from coevolve.compute.torch_backend import tree_hidden
from coevolve.models.spec import LoraSpec
from coevolve.models.weights import trunk

training: Any = pytest.importorskip("coevolve.compute.cpu.training")
TreeAttention: Any = pytest.importorskip("coevolve.compute.cpu.attention").TreeAttention


def turned(x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
    low, high = x_NHD.chunk(2, -1)
    return x_NHD * cos_ND[:, None] + torch.cat((-high, low), -1) * sin_ND[:, None]


def added(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x + y, functional.rms_norm(x + y, weight.shape, weight, 0.01)


def heads(x_NAD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> tuple[Tensor, ...]:
    q_NHD, k_NKD, v_NKD = x_NAD.split((3, 2, 2), 1)
    return turned(q_NHD, cos_ND, sin_ND), turned(k_NKD, cos_ND, sin_ND), v_NKD


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "added": (lambda x, y, w: training._Added.apply(x, y, w, 0.01, y.dtype), added, [(7, 12), (7, 12), (12,)]),
    # The halves of cos and sin differ here, which in models they do not.
    "heads": (lambda x, *turn: training._Heads.apply(x, (3, 2, 2), *turn), heads, [(7, 7, 36), (7, 36), (7, 36)]),
    "gate": (
        lambda both: (training._Gate.apply(both),),
        lambda both: (functional.silu(both[:, :12]) * both[:, 12:],),
        [(7, 24)],
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_formula(case: str, dtype: torch.dtype) -> None:
    """What products make and take may be bfloat16: exact but for one rounding of each number, and of every key."""
    ours, formula, shapes = CASES[case]
    torch.manual_seed(0)
    inputs = [3 * torch.randn(shape) for shape in shapes]
    made = 1 if case == "added" else 0  # by a product
    inputs[made] = inputs[made].to(dtype)
    for i, x in enumerate(inputs):
        x.requires_grad_(case != "heads" or i == 0)
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
    pairs = list(zip(ours(*inputs), formula(*exact), strict=True))
    grads = [torch.randn(x.shape).to(x.dtype) for x, _ in pairs]
    torch.autograd.backward([x for x, _ in pairs], grads)
    torch.autograd.backward([y for _, y in pairs], [grad.double() for grad in grads])
    pairs += [(x.grad, y.grad) for x, y in zip(inputs, exact, strict=True) if x.requires_grad]
    assert len(pairs) == {"added": 5, "heads": 4, "gate": 2}[case]
    if case == "heads":
        key = pairs[1][0]
        assert torch.equal(key, key.to(dtype).float())
    for x, y in pairs:
        off = 1e-5 if x.dtype == torch.float32 and case != "heads" else torch.finfo(dtype).eps
        torch.testing.assert_close(x.double(), y, rtol=off, atol=1e-5)
    assert {x.dtype for x, _ in pairs} == ({torch.float32, dtype} if case != "gate" else {dtype})


def by_modules(causal: Any, where_X: Tensor) -> Tensor:
    return tree_hidden(causal, PathAttention(some_tree(), torch.device("cpu")), where_X)


def by_loops(causal: Any, where_X: Tensor) -> Tensor:
    found: Tensor = training.forward(trunk(causal), TreeAttention(some_tree()), where_X, None)
    return found


def learnt(causal: Any, forward: Callable[[Any, Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Some hidden states, one of them twice, and every parameter's gradient of some function of them."""
    causal.zero_grad()
    hidden_NW = forward(causal, torch.tensor([3, *range(0, 60, 2), 3, 7]))
    generator = torch.Generator().manual_seed(1)
    (hidden_NW * torch.randn(hidden_NW.shape, generator=generator)).sum().backward()
    return hidden_NW.detach(), [p.grad.clone() for p in trunk(causal).parameters()]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_forward_of_transformers_and_so_is_its_gradient(family: str) -> None:
    causal = model(FAMILIES[family])
    assert ready(causal).backend.name == "cpu"
    right, right_grads = learnt(causal, by_modules)
    found, grads = learnt(causal, by_loops)
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))
    for ours, theirs in zip(grads, right_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_its_gradient_is_as_near_to_float32_as_that_of_the_modules(family: str) -> None:
    causal = model(FAMILIES[family])
    ready(causal)
    _, exact = learnt(causal, by_modules)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, theirs = learnt(causal, by_modules)
        _, ours = learnt(causal, by_loops)

    def off(grads: list[Tensor]) -> float:
        return float(sum((x - y).square().sum() for x, y in zip(grads, exact, strict=True)))

    assert 0 < off(ours) < 1.5 * off(theirs)


@pytest.mark.parametrize("settings", [{}, {"weights": "lora", "lora": LoraSpec(rank=3)}])
def test_policies_learn_with_it(settings: dict[str, Any], build_policy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with adapters: the linear layers are the model's own."""
    batch, calls, found, honest = make_batch(6, seed=3), list[int](), [], training.forward

    def counted(*given: Any) -> Tensor:
        calls.append(len(given[2]))
        made: Tensor = honest(*given)
        return made

    monkeypatch.setattr(training, "forward", counted)
    for compute in ("cpu", "torch"):
        policy = shaken(build_policy(compute=compute, **settings))
        calls.clear()  # of the trial of a model that is loaded
        policy.outputs(batch).logp_BT.sum().backward()
        assert calls == ([int(batch.mask_BT.sum())] if compute == "cpu" else [])
        found.append([p.grad for p in policy.parameters])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_products_have_few_shapes(build_policy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps something for every number of rows it has seen."""
    policy, seen, honest = build_policy(compute="cpu"), set(), training.side_by_side

    def counted(layers: Any, x_NW: Tensor, adapters: Any) -> Any:
        seen.add(len(x_NW))
        return honest(layers, x_NW, adapters)

    monkeypatch.setattr(training, "side_by_side", counted)
    for seed in range(9):
        policy.outputs(make_batch(40, seed))
    assert len(seen) > 1 and all(rows % 8 == 0 for rows in seen)
