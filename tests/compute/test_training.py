"""The written-out forward of updates, and its gradient, against transformers' modules and against plain formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_families import FAMILIES, model, ready, some_tree
from policy_cases import Build, make_batch, shaken
from torch import Tensor

from coevolve.compute.attention import PathAttention
from coevolve.compute.torch_backend import tree_hidden
from coevolve.models.spec import LoraSpec
from coevolve.models.weights import trunk

training: Any = pytest.importorskip("coevolve.compute.cpu.training")
TreeAttention: Any = pytest.importorskip("coevolve.compute.cpu.attention").TreeAttention


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
