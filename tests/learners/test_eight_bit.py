"""Moments in 8 bits: nearly AdamW's steps, in a quarter of the memory, resumed as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import Build, make_batch, make_rule, make_targets

from coevolve.learners import fsdp
from coevolve.learners.build import build_policies
from coevolve.learners.cost import plan_memory
from coevolve.learners.local import LocalLearner
from coevolve.learners.optim import adamw, load_state, saved
from coevolve.models.spec import LoraSpec, PolicySpec

KINDS = ["adamw_8bit", "paged_adamw_8bit"]


@pytest.fixture(autouse=True)
def _package() -> None:
    pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes (coevolve[quant])")


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_nearly_those_of_adamw(kind: str) -> None:
    torch.manual_seed(0)
    start, rate = torch.randn(64, 128), 1e-3
    gradients = [torch.randn(64, 128) * 10 ** torch.linspace(-1, 0, 128) for _ in range(5)]
    moved, sizes = [], []
    for optimizer in ("adamw", kind):
        spec = PolicySpec("m", learning_rate=rate, weight_decay=0.1, optimizer=optimizer)  # type: ignore[arg-type]
        weight = torch.nn.Parameter(start.clone())
        made = adamw([weight], spec)
        for gradient in gradients:
            weight.grad = gradient.clone()
            made.step()
        moved.append(weight.detach() - start)
        sizes.append(sum(x.nbytes for x in made.state[weight].values() if torch.is_tensor(x) and x.numel() > 256))
    one, other = moved
    assert 0 < (one - other).norm() / one.norm() < 0.03
    assert sizes == [2 * 4 * 64 * 128, 2 * 64 * 128]


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """All that are somewhere in it."""
    if torch.is_tensor(tree):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from tensors(value)


def test_a_resume_is_the_same(tmp_path: Path) -> None:
    def built(**settings: Any) -> LocalLearner:
        spec = PolicySpec("coevolve-tiny", learning_rate=1e-2, compute="torch", **settings)
        return build_policies({"a": spec}, reference=False, critic=False, steps=4, seed=0)["a"]

    def learn(policy: LocalLearner, steps: range) -> None:
        for i in steps:
            batch = make_batch(8, seed=i)
            policy.update(batch, make_targets(batch, i), make_rule(), i)

    straight = built(optimizer="adamw_8bit")
    learn(straight, range(4))
    first = built(optimizer="adamw_8bit")
    learn(first, range(2))
    first.save(tmp_path / "agent")
    torch.save(first.training_state(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert torch.uint8 in {x.dtype for x in tensors(state)}
    second = built(optimizer="adamw_8bit")
    second.load(tmp_path / "agent", state)
    learn(second, range(2, 4))
    assert all(map(torch.equal, straight.parameters, second.parameters))
    with pytest.raises(ValueError, match="its optimiser's state is of other moments"):
        built().load(tmp_path / "agent", state)


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_paged_moments_are_saved_as_ordinary_ones_and_paged_again() -> None:
    """On a GPU bitsandbytes marks paged tensors by an attribute, which torch.save keeps and its loading drops."""
    weight = torch.nn.Parameter(torch.randn(64, 128))
    spec = PolicySpec("m", optimizer="paged_adamw_8bit")
    made, other = adamw([weight], spec), adamw([weight], spec)
    weight.grad = torch.randn(64, 128)
    made.step()
    before = {key: made.state[weight][key] for key in ("state1", "state2")}
    for moment in before.values():
        moment.is_paged = True  # type: ignore[attr-defined]
    state = saved(made)
    assert not any(hasattr(x, "is_paged") for x in tensors(state))
    asked = list[torch.dtype]()

    def paged(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        asked.append(dtype)
        buffer = torch.zeros_like(parameter, dtype=dtype)
        buffer.is_paged = True  # type: ignore[attr-defined]
        return buffer

    other.get_state_buffer = paged  # type: ignore[attr-defined]
    load_state(other, state)
    assert asked == [torch.uint8] * 2
    for key, moment in before.items():
        found = other.state[weight][key]
        assert found.is_paged and torch.equal(found, moment)


def test_what_it_takes() -> None:
    whole, eighth = (
        plan_memory(PolicySpec("m", optimizer=kind), 1_000_000, False, False)["optimizer"]  # type: ignore[arg-type]
        for kind in ("adamw", "adamw_8bit")
    )
    assert (whole, eighth) == (8_000_000, 2 * 1_000_000 + 2 * 4 * 1_000_000 // 256)


def test_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch, micro_model: str) -> None:
    spec = PolicySpec(micro_model, optimizer="adamw_8bit")
    how = {"reference": False, "critic": False, "steps": 1, "seed": 0}
    with pytest.raises(ValueError, match="whose moments cannot be sharded with the weights; say optimizer: adamw"):
        fsdp("ann", spec, **how, ranks=2)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="device is xpu:1, for which there are no ranks; say cuda, cpu, or learner: null"
    ):
        fsdp("ann", PolicySpec(micro_model, device="xpu:1"), **how, ranks=2)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match=r"policy 'ann': optimizer: adamw_8bit needs the package bitsandbytes; pip"):
        build_policies({"ann": spec}, **how)  # type: ignore[arg-type]


def test_an_adapter_learns_with_it(build_policy: Build) -> None:
    policy = build_policy(weights="lora", lora=LoraSpec(4, 4), optimizer="adamw_8bit", learning_rate=1e-2)
    batch = make_batch(8, seed=0)
    losses = [policy.update(batch, make_targets(batch, 1), make_rule(), i)["loss"] for i in range(6)]
    assert losses[-1] < losses[0]
