"""Saving and loading: folders other libraries load alone, and training that continues as if never stopped."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from policy_cases import Build, make_batch, make_rule, make_targets
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import PolicySpec


def train(policy: LocalLearner, steps: range) -> None:
    for step in steps:
        batch = make_batch(6, seed=step)
        policy.update(policy.describe(batch), make_targets(batch, step), make_rule(epochs=2, minibatch=4), step)


@pytest.mark.parametrize("family", ["micro_model", "micro_gpt2"])
@pytest.mark.parametrize("weights", ["full", "lora"])
def test_a_loaded_policy_continues_bit_for_bit(
    weights: str, family: str, build_policy: Build, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {
        "model": request.getfixturevalue(family), "weights": weights, "critic": True, "reference": True,
        "learning_rate": 1e-2, "schedule": "linear",
    }  # fmt: skip
    whole = build_policy(**settings)
    train(whole, range(3))
    whole.save(tmp_path / "agent")
    torch.save(whole.training_state(), tmp_path / "state.pt")
    train(whole, range(3, 6))
    loaded = build_policy(**settings)
    loaded.load(tmp_path / "agent", torch.load(tmp_path / "state.pt", weights_only=True))
    train(loaded, range(3, 6))
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters, loaded.parameters, strict=True))
    probe = make_batch(4, seed=99)
    for name in ("kl_BT", "logp_ref_BT", "value_BT"):
        assert torch.equal(getattr(whole.describe(probe), name), getattr(loaded.describe(probe), name))


def saved_logits(policy: LocalLearner, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), policy.active() as causal:
        return causal(input_ids=ids).logits


def test_a_full_policy_loads_with_transformers_alone(build_policy: Build, tmp_path: Path) -> None:
    policy = build_policy(critic=True, reference=True, learning_rate=1e-2)
    train(policy, range(2))
    policy.save(tmp_path)
    ids = torch.tensor([[5, 9, 1, 0, 7]])
    alone = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(alone(input_ids=ids).logits, saved_logits(policy, ids))
    assert AutoTokenizer.from_pretrained(tmp_path)("hello").input_ids == policy.tokenizer("hello").input_ids
    assert (tmp_path / "value_head.safetensors").is_file()


@pytest.mark.parametrize("family", ["micro_model", "micro_gpt2"])
def test_an_adapter_loads_with_peft_alone(
    family: str, build_policy: Build, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from peft import PeftModel

    model = request.getfixturevalue(family)
    policy = build_policy(model=model, weights="lora", critic=True, reference=True, learning_rate=1e-2)
    train(policy, range(2))
    policy.save(tmp_path)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in tmp_path.iterdir()}
    ids = torch.tensor([[5, 9, 1, 0, 7]])
    base = AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.no_grad():
        start = base(input_ids=ids).logits
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # peft warns about missing and unexpected keys
            alone = PeftModel.from_pretrained(base, tmp_path)
        torch.testing.assert_close(alone(input_ids=ids).logits, saved_logits(policy, ids))
    assert not torch.allclose(saved_logits(policy, ids), start)


def test_a_frozen_policy_keeps_its_start(build_policy: Build, tmp_path: Path) -> None:
    policy = build_policy(weights="frozen", critic=True, reference=True)
    policy.save(tmp_path)
    assert policy.training_state() == {}
    policy.load(tmp_path, {})
    assert not (tmp_path / "value_head.safetensors").exists()


@pytest.mark.parametrize("wanted", [True, False])
def test_saving_draws_no_bars_and_leaves_the_setting(
    wanted: bool, build_policy: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = build_policy()
    capfd.readouterr()
    was = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if wanted else logging.disable_progress_bar)()
    try:
        policy.save(tmp_path)
        assert logging.is_progress_bar_enabled() == wanted
    finally:
        (logging.enable_progress_bar if was else logging.disable_progress_bar)()
    assert capfd.readouterr().err == ""


def test_a_frozen_policy_is_saved_without_the_adapters_on_its_base(micro_gpt2: str, tmp_path: Path) -> None:
    specs = {"a": PolicySpec(micro_gpt2, weights="lora"), "b": PolicySpec(micro_gpt2, weights="frozen")}
    policies = build_policies(specs, reference=False, critic=False, steps=3, seed=0)
    train_one = make_batch(6, seed=0)
    policies["a"].update(train_one, make_targets(train_one, 0), make_rule(), 0)
    policies["b"].save(tmp_path)
    ids = torch.tensor([[5, 9, 1, 0, 7]])
    start, alone = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (micro_gpt2, tmp_path))
    assert {n for n, _ in alone.named_parameters()} == {n for n, _ in start.named_parameters()}
    with torch.no_grad():
        assert torch.equal(alone(input_ids=ids).logits, start(input_ids=ids).logits)


def test_a_reset_optimiser_knows_nothing(build_policy: Build) -> None:
    policy = build_policy(critic=True, reference=True)
    train(policy, range(1))
    assert policy.training_state()["optimizer"]["state"]
    weights = [p.detach().clone() for p in policy.parameters]
    policy.reset_optimizer()
    assert not policy.training_state()["optimizer"]["state"]
    assert all(torch.equal(p, q) for p, q in zip(weights, policy.parameters, strict=True))
