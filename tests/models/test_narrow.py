"""Weights that nobody trains are held in bfloat16 where that is what computes: half the memory, the same numbers."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from micro import VOCABULARY, save_micro
from policy_cases import make_family, make_rule, make_says, make_targets, ragged, shaken
from transformers import LlamaConfig, LlamaForCausalLM

from coevolve.compute.backend import slow_dtype
from coevolve.engines.local import LocalEngine
from coevolve.learners import build
from coevolve.learners.build import build_policies
from coevolve.learners.cost import plan_memory
from coevolve.learners.local import LocalLearner
from coevolve.models.load import load_causal_lm
from coevolve.models.narrow import exact
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.runtime import placement
from coevolve.types import Sampling


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a Llama that was saved in bfloat16, its head tied to its embedding."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=1, pad_token_id=0,
        tie_word_embeddings=True,
    )  # fmt: skip
    return save_micro(LlamaForCausalLM(config).to(torch.bfloat16), tmp_path_factory.mktemp("tied"))


def policies(model: str, specs: dict[str, dict[str, Any]], **options: Any) -> dict[str, LocalLearner]:
    made = {name: PolicySpec(model, **{"dtype": "bfloat16", **spec}) for name, spec in specs.items()}
    return build_policies(made, **{"reference": True, "critic": False, "steps": 2, "seed": 0, **options})


def narrow_bytes(policy: LocalLearner) -> tuple[int, int]:
    """Of the base's parameters: those in bfloat16, and all others but adapters."""
    named = [(n, p) for n, p in policy.weights.base.causal.named_parameters() if ".lora_" not in n]
    held = [p.nbytes for _, p in named if p.dtype == torch.bfloat16]
    return sum(held), sum(p.nbytes for _, p in named) - sum(held)


def test_what_is_trained_is_float32_and_what_is_not_is_not(tied: str, micro_model: str) -> None:
    made = policies(tied, {"a": {"weights": "lora"}, "b": {"weights": "frozen"}, "c": {}})
    assert made["a"].weights.base is made["b"].weights.base is made["c"].reference.base
    assert {p.dtype for policy in made.values() for p in policy.parameters} == {torch.float32}
    held, others = narrow_bytes(made["a"])
    assert held > 20 * others, "only norms are float32"
    assert narrow_bytes(made["c"])[0] == 0
    for name, settings in {
        "computes in float32": {"dtype": "float32", "weights": "lora"},
        "trained itself": {},
    }.items():
        alone = policies(tied, {"a": settings}, reference=False)["a"]
        assert narrow_bytes(alone)[0] == 0, name
    of_float32 = policies(micro_model, {"a": {"weights": "frozen"}})["a"].weights.base.causal
    assert of_float32.lm_head.weight.dtype == torch.bfloat16, "which every product rounds anyway"
    embedding = of_float32.get_input_embeddings().weight
    assert embedding.dtype == torch.float32 and not exact(embedding), "which none rounds"


@pytest.mark.parametrize("compute", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("file", ["tied", "micro_model"])
def test_not_a_bit_of_what_is_computed_changes(
    file: str, weights: str, compute: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against weights in float32: tokens and log-probabilities of a rollout, descriptions, and an update."""
    model, found = request.getfixturevalue(file), []
    for how in (build.narrow, lambda causal: None):
        monkeypatch.setattr(build, "narrow", how)
        policy = policies(model, {"a": {"weights": weights, "compute": compute, "learning_rate": 1e-2}})["a"]
        assert policy.describe(make_family(2, seed=1)).kl_BT.abs().max() == 0, "its own reference"
        shaken(policy)
        turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(5, seed=3), Sampling(6))})["a"]
        batch = policy.describe(make_family(2, seed=1).replace(version_B=None))
        policy.update(batch, make_targets(batch, 0), make_rule(), 0)
        numbers = [batch.kl_BT, batch.logp_ref_BT, *(p.detach() for p in policy.parameters)]
        found.append(([turn.action_ids for turn in turns], [turn.logps for turn in turns], numbers))
    (ids, logps, ours), (wanted_ids, wanted_logps, wanted) = found
    assert (ids, logps) == (wanted_ids, wanted_logps)
    assert all(torch.equal(x, y) for x, y in zip(ours, wanted, strict=True))


@pytest.mark.parametrize("compute", ["cpu", "torch"])
def test_what_a_loss_compares_with_is_computed_in_bfloat16_too(compute: str, tied: str) -> None:
    """A policy that has not learnt is its own reference, but for the order of sums."""
    policy = policies(tied, {"a": {"weights": "lora", "compute": compute}})["a"]
    assert float(policy.outputs(make_family(2, seed=1), kl=True).kl_BT.detach().abs().max()) < 5e-6


@pytest.mark.parametrize("targets", [["lm_head"], ["q_proj", "lm_head"]])
def test_adapters_on_the_head_still_learn(targets: list[str], tied: str) -> None:
    policy = policies(tied, {"a": {"weights": "lora", "lora": LoraSpec(targets=targets), "learning_rate": 1e-2}})["a"]
    before = [p.detach().clone() for p in policy.parameters]
    batch = policy.describe(make_family(1, seed=1).replace(version_B=None))
    policy.update(batch, make_targets(batch, 0), make_rule(), 0)
    assert any(not torch.equal(x, y) for x, y in zip(before, policy.parameters, strict=True))


def test_a_frozen_policy_is_saved_as_it_is(tied: str, tmp_path: Path) -> None:
    policies(tied, {"a": {"weights": "frozen"}})["a"].save(tmp_path)
    saved, start = load_causal_lm(str(tmp_path)).state_dict(), load_causal_lm(tied).state_dict()
    assert saved.keys() == start.keys() and all(torch.equal(saved[name], start[name]) for name in saved)


def test_worker_processes_see_the_same_memory(tied: str) -> None:
    made = policies(tied, {"a": {"weights": "lora"}, "b": {"weights": "lora"}}, workers=True)
    batch = make_family(3, seed=1).replace(version_B=None)
    for policy in made.values():
        seen = policy.describe(batch)
        policy.update(seen, make_targets(batch, 0), make_rule(), 0)
    memory = made["a"].pool._memory  # type: ignore[attr-defined]
    places = {view.data_ptr(): view for view in memory.views}
    base = [p for p in made["a"].weights.base.causal.parameters() if p.dtype == torch.bfloat16]
    assert len(base) > 10 and all(places[p.data_ptr()].dtype == torch.bfloat16 for p in base)
    made["a"].close()


def test_the_plan_counts_it() -> None:
    half = plan_memory(PolicySpec("m", weights="frozen", dtype="bfloat16"), 1000, False, False, linear=800)
    assert half["weights"] == 4 * 200 + 2 * 800
    full = plan_memory(PolicySpec("m", dtype="bfloat16"), 1000, reference=True, critic=False, linear=800)
    assert (full["weights"], full["reference"]) == (4000, 4 * 200 + 2 * 800)


@pytest.mark.parametrize("has", [{}, {"avx512_bf16": True}, {"amx_bf16": True}])
def test_a_processor_without_bfloat16_is_told_of(tied: str, has: dict[str, bool], monkeypatch: Any) -> None:
    known = {"architecture": "x86_64", "avx2": True, "avx512_bf16": False, "amx_bf16": False} | has
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kinds = {"a": "lora", "b": "lora", "c": "frozen"}
        policies(tied, {name: {"weights": weights, "compute": "torch"} for name, weights in kinds.items()})
    told = [str(one.message) for one in said if "instructions" in str(one.message)]
    line = "policies a, b: this processor has no instructions for bfloat16 (AVX512-BF16 or AMX), so updates may take "
    assert told == ([] if has else [line + "many times as long as with dtype: float32"])
    cpu, theirs, ours = torch.device("cpu"), SimpleNamespace(name="torch"), SimpleNamespace(name="cpu")
    for backend, device, dtype in (
        (theirs, cpu, torch.float32),
        (theirs, torch.device("cuda"), torch.bfloat16),
        (ours, cpu, torch.bfloat16),  # compiled loops, whose layers multiply in float32 there
    ):
        assert slow_dtype(backend, device, dtype) is None


@pytest.mark.parametrize(
    ("weights", "cores", "chosen"), [("lora", 2, "cpu"), ("lora", 3, "torch"), ("full", 2, "torch")]
)
def test_a_large_base_that_nobody_trains_is_the_loops_where_there_are_few_cores(
    tied: str, weights: str, cores: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full policy that starts from it would be copied for every rollout."""
    monkeypatch.setattr(pytest.importorskip("coevolve.compute.cpu.decoder"), "MOST", 0)
    monkeypatch.setattr(placement, "cores", lambda: cores)
    made = policies(tied, {"a": {"weights": "lora"}, "b": {"weights": weights}})
    assert {policy.backend.name for policy in made.values()} == {chosen}


@pytest.mark.parametrize("workers", [False, True])
def test_what_is_sampled_from_a_copy_that_is_kept_is_of_the_weights_of_now(tied: str, workers: bool) -> None:
    """Adapters that have learnt, of whose base there is a copy from before; also where another one trains the whole."""
    products = pytest.importorskip("coevolve.compute.cpu.products")
    made = policies(tied, {"a": {"weights": "lora"}, "b": {"weights": "frozen"}, "c": {}}, workers=workers)
    says = {name: make_says(ragged(40, seed=1), Sampling(9)) for name in made}
    engine, batch = LocalEngine(made), make_family(3, seed=1).replace(version_B=None)
    before = engine.generate(says)
    for name in ("a", "c"):
        made[name].update(made[name].describe(batch), make_targets(batch, 0), make_rule(), 0)
    after = engine.generate(says)
    layer = made["a"].weights.base.causal.base_model.layers[0].mlp.down_proj.base_layer
    assert workers or layer in products._KEPT
    products._KEPT.clear()
    for policy in made.values():
        policy.close()  # other processes, which have no copy, are the next
    anew = engine.generate(says)
    for name in made:
        assert [turn.action_ids for turn in after[name]] == [turn.action_ids for turn in anew[name]]
        assert [turn.logps for turn in after[name]] == [turn.logps for turn in anew[name]]
        assert (after[name] == before[name]) is (name == "b")
    for policy in made.values():
        policy.close()
