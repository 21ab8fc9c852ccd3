"""A base in 4 bits, on the CPU: it computes, samples and learns like its own weights written out in float32."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import make_batch, make_rule, make_says, make_targets, ragged
from transformers import AutoModelForCausalLM, AutoTokenizer

from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.learners.cost import plan_memory
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import PolicySpec
from coevolve.types import Sampling

Team = Callable[..., dict[str, LocalLearner]]


@pytest.fixture
def four_bit() -> Any:
    return pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes (coevolve[quant])")


def team(model: str, *, critic: bool = True, **settings: dict[str, Any]) -> dict[str, LocalLearner]:
    specs = {name: PolicySpec(model, **({"learning_rate": 1e-2} | given)) for name, given in settings.items()}
    return build_policies(specs, reference=True, critic=critic, steps=5, seed=0)


LORA = {"weights": "lora", "load_in_4bit": True}


def written_out(bnb: Any, model: str, folder: Path) -> str:
    """The model with its 4-bit weights as float32, in a folder."""
    quantised = team(model, a=LORA)["a"].weights.base.causal
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for name, module in quantised.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            dense = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            target = plain.get_submodule(name.replace(".base_layer", "")).weight
            target.data.copy_(dense)
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return str(folder)


def test_linear_layers_are_small_and_the_rest_is_float32(four_bit: Any, micro_model: str) -> None:
    causal = team(micro_model, a=LORA)["a"].weights.base.causal
    kinds = {name: p.dtype for name, p in causal.named_parameters() if "lora" not in name}
    assert {name for name, dtype in kinds.items() if dtype == torch.uint8} == {
        f"model.layers.{layer}.{module}.base_layer.weight"
        for layer in (0, 1)
        for module in (
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        )
    }  # fmt: skip
    assert set(kinds.values()) == {torch.uint8, torch.float32}
    assert kinds["lm_head.weight"] == kinds["model.embed_tokens.weight"] == torch.float32


def test_like_its_weights_written_out(four_bit: Any, micro_model: str, tmp_path: Path) -> None:
    small = team(micro_model, a=LORA)["a"]
    plain = team(written_out(four_bit, micro_model, tmp_path), a={"weights": "lora"})["a"]
    says = make_says(ragged(20, seed=1), Sampling(8))
    turns = [LocalEngine({"a": policy}).generate({"a": says})["a"] for policy in (small, plain)]
    assert [t.action_ids for t in turns[0]] == [t.action_ids for t in turns[1]]
    batch = make_batch(8, seed=2)
    for step in range(3):
        seen = [policy.describe(batch) for policy in (small, plain)]
        for name in ("kl_BT", "value_BT", "logp_ref_BT"):
            torch.testing.assert_close(*(getattr(one, name) for one in seen), rtol=1e-3, atol=1e-4)
        norms = [
            p.update(b, make_targets(b, step), make_rule(), step)["grad_norm"]
            for p, b in zip((small, plain), seen, strict=True)
        ]
        assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    for ours, theirs in zip(small.parameters, plain.parameters, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-4)
    assert seen[0].kl_BT.sum() > 0


def test_every_adapter_gets_a_gradient(four_bit: Any, micro_model: str) -> None:
    policy, batch, found = team(micro_model, a=LORA)["a"], make_batch(5, seed=1), list[bool]()
    assert policy.optimizer is not None
    policy.optimizer.register_step_pre_hook(
        lambda *_: found.extend(p.grad is not None and bool(p.grad.any()) for p in policy.parameters)
    )
    for step in range(2):  # B starts at 0, and with it the gradient of A
        policy.update(batch, make_targets(batch, 3), make_rule(), step)
    assert len(policy.parameters) == 2 * 14 + 2  # A and B of 14 layers, weight and bias of the value head
    assert len(found) == 60 and all(found[30:])


def test_policies_share_one_base_and_do_not_touch_it(four_bit: Any, micro_model: str) -> None:
    policies = team(micro_model, a=LORA, b=LORA, c={"weights": "frozen", "load_in_4bit": True})
    assert len({id(p.weights.base) for p in policies.values()}) == 1
    assert policies["a"].reference is not None and policies["a"].reference.base is policies["c"].weights.base
    batch = make_batch(5, seed=1)
    before = {name: p.outputs(batch).logp_BT.detach() for name, p in policies.items()}
    for step in range(2):
        policies["a"].update(batch, make_targets(batch, 3), make_rule(), step)
    for name, policy in policies.items():
        assert torch.equal(policy.outputs(batch).logp_BT, before[name]) == (name != "a")


def test_each_precision_has_its_own_base(four_bit: Any, micro_model: str) -> None:
    policies = team(
        micro_model, critic=False, a=LORA, b=LORA | {"dtype": "bfloat16"}, c={"weights": "lora"}, d={"weights": "full"}
    )
    bases = [policies[name].reference.base for name in "abcd"]  # type: ignore[union-attr]
    assert len({id(base) for base in bases}) == 3 and bases[2] is bases[3]
    batch = make_batch(5, seed=1)
    for policy in policies.values():
        assert policy.update(policy.describe(batch), make_targets(batch, 3), make_rule(), 0)["grad_norm"] > 0


def test_gpt2_in_4_bits(four_bit: Any, micro_gpt2: str) -> None:
    policy, batch = team(micro_gpt2, a=LORA)["a"], make_batch(5, seed=1)
    seen = policy.describe(batch)
    torch.testing.assert_close(seen.kl_BT, torch.zeros_like(seen.kl_BT), rtol=0, atol=1e-5)
    assert policy.update(seen, make_targets(batch, 3), make_rule(), 0)["grad_norm"] > 0


def test_a_checkpoint_is_the_adapter(four_bit: Any, micro_model: str, tmp_path: Path) -> None:
    first, batch = team(micro_model, a=LORA)["a"], make_batch(5, seed=1)
    first.update(first.describe(batch), make_targets(batch, 3), make_rule(), 0)
    first.save(tmp_path)
    second = team(micro_model, a=LORA)["a"]
    second.load(tmp_path, first.training_state())
    assert torch.equal(first.outputs(batch).logp_BT, second.outputs(batch).logp_BT)
    assert sum(file.stat().st_size for file in tmp_path.glob("*.safetensors")) < 200_000


def test_a_frozen_base_is_saved_in_4_bits(four_bit: Any, micro_model: str, tmp_path: Path) -> None:
    policy = team(micro_model, a=LORA, c={"weights": "frozen", "load_in_4bit": True})["c"]
    policy.save(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path
    ).train()  # else bitsandbytes packs it, and fails: it is too small
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad(), policy.active() as causal:
        torch.testing.assert_close(again(ids).logits.float(), causal(ids).logits, rtol=1e-2, atol=1e-2)


def test_full_weights_in_4_bits() -> None:
    with pytest.raises(ValueError, match="load_in_4bit with weights: full; 4-bit weights cannot be trained, so say"):
        PolicySpec("any", load_in_4bit=True)


def test_without_bitsandbytes_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match=r"policy 'ann': load_in_4bit needs the package bitsandbytes; pip install"):
        build_policies({"ann": PolicySpec("no/such-model", **LORA)}, reference=True, critic=True, steps=1, seed=0)


def test_memory_of_a_4_bit_base() -> None:
    # 16384 weights in 4 bits: 8192 bytes, 256 scales of a byte and 1 of four. The other 100 are float32.
    kept = plan_memory(PolicySpec("m", weights="frozen", load_in_4bit=True), 16484, False, False, linear=16384)
    assert kept["weights"] == 8192 + 256 + 4 + 400
    # An adapter's weights, gradients and moments are not in 4 bits.
    small, large = (
        plan_memory(
            PolicySpec("m", weights="lora", load_in_4bit=on), 124_000_000, True, True, linear=85_000_000, adapter=9
        )
        for on in (True, False)
    )
    assert large["weights"] - small["weights"] == 296_151_123  # 85e6 * (4 - 0.515869140625)
    assert all(small[part] == large[part] for part in ("gradients", "optimizer", "reference"))
