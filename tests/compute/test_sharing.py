"""What policies share in memory, and that adapters on one base do not touch each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from micro import VOCABULARY, save_micro
from policy_cases import Build, make_batch, make_rule, make_says, make_targets, ragged
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    FalconConfig,
    Gemma2Config,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MiniMaxConfig,
    MixtralConfig,
    MptConfig,
    OPTConfig,
    Qwen3MoeConfig,
)

from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.learners.cost import plan_memory
from coevolve.learners.local import LocalLearner
from coevolve.learners.optim import lr_factor
from coevolve.models.policy import UNLIMITED, context_of
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.models.weights import Base, check_model
from coevolve.types import Sampling


def team(model: str, *, reference: bool = True, critic: bool = True, **weights: str) -> dict[str, LocalLearner]:
    specs = {name: PolicySpec(model, weights=kind, learning_rate=1e-2) for name, kind in weights.items()}  # type: ignore[arg-type]
    return build_policies(specs, reference=reference, critic=critic, steps=5, seed=0)


def storages(policies: dict[str, LocalLearner]) -> int:
    """Bytes of all distinct parameters the policies hold, references and value heads included."""
    found: dict[int, int] = {}
    for policy in policies.values():
        modules = [policy.weights.base.causal, policy.value_head]
        modules += [policy.reference.base.causal] if policy.reference else []
        for module in modules:
            for parameter in module.parameters() if module is not None else ():
                found[parameter.data_ptr()] = parameter.numel() * parameter.element_size()
    return sum(found.values())


def test_adapters_share_one_base(micro_model: str) -> None:
    base = storages(team(micro_model, a="frozen"))
    one, four = (storages(team(micro_model, **dict.fromkeys(names, "lora"))) for names in ("a", "abcd"))
    adapter = one - base
    assert adapter > 0 and four == base + 4 * adapter


def test_a_mixed_team_holds_one_base_and_one_copy_per_full_policy(micro_model: str) -> None:
    base = storages(team(micro_model, a="frozen"))
    policies = team(micro_model, critic=False, a="full", b="full", c="frozen", d="frozen")
    assert storages(policies) == 3 * base
    assert policies["a"].reference.base is policies["b"].reference.base is policies["c"].weights.base
    assert storages(team(micro_model, critic=False, reference=False, a="full", b="full")) == 2 * base
    assert storages(team(micro_model, critic=False, reference=False, a="full")) == base


def logps(policy: LocalLearner) -> torch.Tensor:
    with torch.no_grad():
        return policy.outputs(make_batch(5, seed=1)).logp_BT.clone()


def test_learning_changes_only_the_policy_that_learns(micro_model: str) -> None:
    policies = team(micro_model, a="lora", b="lora", c="full", d="full", e="frozen")
    start = logps(policies["e"])
    batch = make_batch(5, seed=1)
    for learner in ("a", "c", "b"):
        before = {name: logps(policy) for name, policy in policies.items()}
        for step in range(2):
            policies[learner].update(batch, make_targets(batch, 3), make_rule(), step)
        for name, policy in policies.items():
            assert torch.equal(logps(policy), before[name]) == (name != learner), (learner, name)
    for name in "abc":
        seen = policies[name].describe(batch)
        torch.testing.assert_close(seen.logp_ref_BT, start, rtol=1e-6, atol=1e-6)
        assert seen.kl_BT.sum() > 0
    assert not torch.equal(logps(policies["a"]), logps(policies["b"]))
    assert torch.equal(logps(policies["e"]), start)


def test_the_engine_samples_each_policy_with_its_own_adapter(micro_model: str) -> None:
    policies, batch = team(micro_model, a="lora", b="lora", c="frozen"), make_batch(5, seed=1)
    for step in range(4):
        policies["a"].update(batch, make_targets(batch, 3), make_rule(), step)
    prompts = ragged(12, seed=2)
    turns = LocalEngine(policies).generate({n: make_says(prompts, Sampling(10), n) for n in "abc"})
    said = {name: [t.action_ids for t in turns[name]] for name in turns}
    assert said["b"] == said["c"] != said["a"]


def test_adapters_start_alike_in_every_process_and_unlike_by_name(micro_model: str) -> None:
    first, second = (team(micro_model, a="lora", b="lora") for _ in range(2))
    a, again, b = (list(policy.weights.parameters()) for policy in (first["a"], second["a"], first["b"]))
    assert all(torch.equal(p, q) for p, q in zip(a, again, strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_loading_leaves_the_global_generator_alone(micro_model: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    team(micro_model, a="lora")
    assert torch.equal(torch.rand(1), expected)


def test_lora_settings_are_used(micro_model: str) -> None:
    spec = PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=3, alpha=6, targets=["q_proj"]))
    policy = build_policies({"a": spec}, reference=False, critic=False, steps=1, seed=0)["a"]
    shapes = [tuple(p.shape) for p in policy.parameters]
    assert shapes == [(3, 32), (32, 3)] * 2  # A and B of q_proj in two layers


BART = {"vocab_size": 64, "d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
ODD = {"num_hidden_layers": 1, "hidden_size": 16, "vocab_size": 64, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Gemma2Config(**ODD, num_key_value_heads=2, head_dim=8), "changes its logits after the output layer"),
        (GraniteConfig(**ODD, logits_scaling=3.0), "changes its logits after the output layer"),
        (MambaConfig(**ODD, state_size=4), "keeps no key-value cache"),
        (MiniMaxConfig(**ODD, num_key_value_heads=2, num_local_experts=2), "takes no cache but its own"),
        (Llama4TextConfig(**ODD, num_key_value_heads=2, head_dim=8, num_local_experts=2), "has no output layer that"),
        (BartConfig(**BART), "computes something else where a row is padded on the left"),  # it counts positions itself
    ],
)
def test_families_that_would_be_trained_wrongly_are_refused(config: Any, message: str) -> None:
    torch.manual_seed(0)
    causal = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        causal.get_output_embeddings().weight.mul_(50)
    with pytest.raises(ValueError, match=rf"model 'odd' \({type(causal).__name__}\) {message}"):
        check_model(causal, "odd")


def test_the_context_of_families_that_name_it_otherwise() -> None:
    """A context that counted as unlimited ended hours later, in the model's own code."""
    assert context_of(MptConfig(max_seq_len=48)) == 48
    assert context_of(OPTConfig(max_position_embeddings=40)) == 40
    assert context_of(MambaConfig()) == UNLIMITED


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (MixtralConfig(**ODD, num_key_value_heads=2, num_local_experts=2), "MixtralTopKRouter|ParamWrapper"),
        (Qwen3MoeConfig(**ODD, num_key_value_heads=2, num_experts=2, moe_intermediate_size=16), "ParamWrapper|Router"),
    ],
)
def test_adapters_on_experts_are_refused_at_once(config: Any, kind: str) -> None:
    """PEFT makes them, of parameters that are no layer's; on the layers of attention they are as on any model."""
    base = Base(AutoModelForCausalLM.from_config(config))
    with pytest.raises(ValueError, match=rf"modules of the kind \w*({kind}).*such as \[q_proj, v_proj\]; its linear"):
        base.add("ann", LoraSpec(rank=2), 0)
    base = Base(AutoModelForCausalLM.from_config(config))
    base.add("ann", LoraSpec(rank=2, targets=["q_proj", "v_proj"]), 0)
    assert len(base.lora_layers) == 2


def test_falcons_layers_are_matrix_products_under_a_name_of_their_own() -> None:
    base = Base(AutoModelForCausalLM.from_config(FalconConfig(**ODD)))
    base.add("ann", LoraSpec(rank=2), 0)
    assert {type(layer.base_layer).__name__ for layer in base.lora_layers} == {"FalconLinear"}


def test_where_peft_takes_no_adapter_its_reason_is_told() -> None:
    base = Base(AutoModelForCausalLM.from_config(LlamaConfig(**ODD)))
    base.add("ann", LoraSpec(rank=2), 0)
    with pytest.raises(ValueError, match=r"takes no adapter \(.*ann.*\); its linear layers are q_proj"):
        base.add("ann", LoraSpec(rank=2), 0)


def test_a_critic_reads_what_the_lm_head_reads(tmp_path: Path) -> None:
    """OPT-350m's trunk ends in other numbers than its layers have."""
    config = OPTConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, word_embed_proj_dim=8, num_hidden_layers=1, ffn_dim=16,
        num_attention_heads=2, do_layer_norm_before=False, max_position_embeddings=64,
    )  # fmt: skip
    folder = save_micro(AutoModelForCausalLM.from_config(config), tmp_path)
    learner = team(folder, ann="full")["ann"]
    batch = make_batch(4, 3)
    assert learner.describe(batch).value_BT is not None
    assert learner.value_head is not None and learner.value_head.weight.shape == (1, 8)


@pytest.mark.parametrize(
    ("schedule", "warmup", "factors"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("constant", 2, [0.5, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("linear", 2, [0.5, 1, 1, 0.5]),
        ("cosine", 0, [1, 0.8535534, 0.5, 0.1464466]),
    ],
)
def test_learning_rate_factors_of_four_steps(schedule: str, warmup: int, factors: list[float]) -> None:
    spec = PolicySpec("m", schedule=schedule, warmup_steps=warmup)  # type: ignore[arg-type]
    assert [lr_factor(spec, step, 4) for step in range(4)] == pytest.approx(factors)


def test_memory_plan_counts_four_bytes_a_number() -> None:
    full = plan_memory(PolicySpec("m"), 1000, reference=True, critic=False)
    assert full == {"weights": 4000, "gradients": 4000, "optimizer": 8000, "reference": 4000}
    frozen = plan_memory(PolicySpec("m", weights="frozen"), 1000, reference=True, critic=True)
    assert frozen == {"weights": 4000, "gradients": 0, "optimizer": 0, "reference": 0}
    lora = plan_memory(PolicySpec("m", weights="lora"), 1000, reference=True, critic=False, adapter=30)
    assert lora == {"weights": 4120, "gradients": 120, "optimizer": 240, "reference": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0"),
        ({"betas": (0.9, 1.0)}, r"betas\.1 is 1\.0; want below 1"),
        ({"micro_tokens": 0}, "micro_tokens is 0; want at least 1"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolicySpec("m", **settings)  # type: ignore[arg-type]


def test_an_unknown_device_is_named(build_policy: Build) -> None:
    with pytest.raises(ValueError, match="device 'gpu0' is unknown"):
        build_policy(device="gpu0")
