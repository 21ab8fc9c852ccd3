"""Activation checkpointing: the same gradient, from layers that are computed twice."""

from __future__ import annotations

import pytest
import torch
from policy_cases import Build, make_family, make_rule, make_says, make_targets, shaken
from torch.autograd.graph import saved_tensors_hooks
from transformers import OPTConfig, OPTForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from coevolve.compute.checkpointing import check_layers, checkpointing
from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import PolicySpec
from coevolve.models.weights import trunk
from coevolve.types import Batch, Sampling


def gradients(policy: LocalLearner, batch: Batch) -> tuple[list[torch.Tensor], int]:
    """Of one update, and the bytes that its forwards kept for them, weights not counted."""
    own = {p.untyped_storage().data_ptr() for p in policy.weights.base.causal.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    caught: list[torch.Tensor] = []
    policy.optimizer.register_step_pre_hook(lambda *_: caught.extend(p.grad.clone() for p in policy.parameters))
    with saved_tensors_hooks(keep, lambda x: x):
        policy.outputs(batch)
    policy.update(batch, make_targets(batch, 0), make_rule(), 0)
    return caught, sum(kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["full", "lora"])
@pytest.mark.parametrize("compute", ["cpu", "torch", "reference"])
def test_the_gradient_is_the_same_to_the_bit_and_less_is_kept(
    compute: str, weights: str, dtype: str, build_policy: Build
) -> None:
    batch = make_family(2, seed=1).replace(version_B=None)
    made = [
        gradients(shaken(build_policy(compute=compute, weights=weights, dtype=dtype, gradient_checkpointing=on)), batch)
        for on in (False, True)
    ]
    (plain, much), (again, little) = made
    assert len(plain) > 5 and all(torch.equal(x, y) for x, y in zip(plain, again, strict=True))
    assert little < 0.8 * much, "the micro model has two layers only, and an output layer"


@pytest.mark.parametrize("on", [False, True])
def test_weights_that_are_needed_once_are_not_kept_rounded(on: bool, build_policy: Build) -> None:
    """By autocast, until a whole forward is done; while it samples, each is needed at every token."""
    policy = build_policy(
        compute="torch", dtype="bfloat16", gradient_checkpointing=on, reference=True, learning_rate=1e-2
    )
    kept: list[bool] = []
    trunk(policy.weights.base.causal).layers[0].mlp.register_forward_pre_hook(
        lambda *_: kept.append(torch.is_autocast_cache_enabled())
    )
    batch = make_family(2, seed=1).replace(version_B=None)
    policy.update(policy.describe(batch), make_targets(batch, 0), make_rule(), 0)
    assert kept == [False] * (3 if on else 2)  # described, learnt from, and again for the gradient
    kept.clear()
    LocalEngine({"a": policy}).generate({"a": make_says([[5, 6]], Sampling(3))})
    assert kept and all(kept)


def test_no_dropout_and_no_mode_stays_behind() -> None:
    causal = OPTForCausalLM(
        OPTConfig(vocab_size=64, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, dropout=0.9)
    ).eval()
    ids = torch.arange(3, 9)[None]
    wanted = causal(ids).logits
    with checkpointing(causal, wanted=True):
        found = causal(ids, use_cache=False).logits
    assert torch.equal(found, wanted) and found.requires_grad
    assert not any(module.training for module in causal.modules())


class Inner(GradientCheckpointingLayer):
    """As the Mamba layers of Zamba's hybrid ones: the first tensor that it keeps is a sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.product = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        return self.product((x + more).pow(2)).tanh()


class Outer(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x, more=self.product(more).tanh())


def test_a_layer_inside_another_is_computed_once_more_and_not_twice() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.ModuleList([Outer(), Outer()]).eval(), torch.randn(3, 4)

    def gradient(wanted: bool) -> list[torch.Tensor]:
        with checkpointing(model, wanted):
            y = x
            for layer in model:
                y = layer(y, x)
        return list(torch.autograd.grad(y.sum(), list(model.parameters())))  # when the context has ended

    assert all(torch.equal(a, b) for a, b in zip(gradient(False), gradient(True), strict=True))


def test_a_model_without_layers_for_it_is_refused() -> None:
    with pytest.raises(ValueError, match="'m' \\(Linear\\) has no layers for gradient_checkpointing"):
        check_layers(torch.nn.Linear(2, 2), "m")


@pytest.mark.slow
def test_worker_processes_compute_again_too(micro_model: str) -> None:
    found = []
    for workers in (False, True):
        spec = PolicySpec(
            micro_model, weights="lora", dtype="bfloat16", gradient_checkpointing=True, learning_rate=1e-2
        )
        policy = build_policies({"a": spec}, reference=True, critic=False, steps=1, seed=0, workers=workers)["a"]
        batch = make_family(2, seed=1).replace(version_B=None)
        policy.update(policy.describe(batch), make_targets(batch, 0), make_rule(), 0)
        found.append([p.detach().clone() for p in policy.parameters])
        policy.close()
    assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(*found, strict=True))
