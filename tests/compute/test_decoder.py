"""The written-out forward of a rollout is that of transformers' modules, for every decoder that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from policy_cases import TOKENS, make_says, ragged
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    Glm4MoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    Olmo2Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from coevolve.compute import linear
from coevolve.compute.attention import no_mask, shares
from coevolve.compute.cpu import decoder as written
from coevolve.compute.cpu import prefix_cache as looped
from coevolve.compute.cpu.decoder import Lean, lean
from coevolve.compute.cpu.prefix_cache import Looped
from coevolve.compute.linear import use_fast_linear
from coevolve.compute.packed_tokens import Packed, pack
from coevolve.compute.prefix_cache import Cascade, _Prefill
from coevolve.compute.prefix_tree import grow
from coevolve.compute.probe import use_lean, use_loops, use_sharing
from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.models.adapters import grouped
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.models.weights import trunk
from coevolve.types import Sampling

pytestmark = pytest.mark.usefixtures("each_way")

SMALL: dict[str, Any] = {
    "vocab_size": TOKENS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MINISTRAL3 = {
    "rope_type": "default", "rope_theta": 10000.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
FAMILIES = {
    "llama": LlamaConfig(**SMALL),
    "llama, biases, other rotation": LlamaConfig(
        **SMALL,
        attention_bias=True,
        mlp_bias=True,
        head_dim=12,
        rope_parameters=LLAMA3 | {"original_max_position_embeddings": 16},
    ),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=12),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
}


def model(config: Any) -> Any:
    """A model none of whose weights are ones or zeros."""
    torch.manual_seed(0)
    causal = AutoModelForCausalLM.from_config(config).eval()
    for parameter in causal.parameters():
        nn.init.normal_(parameter, mean=0.5 if parameter.dim() == 1 else 0.0, std=0.2)
    return causal


def ready(causal: Any) -> bool:
    """As ``build_policies`` prepares it; whether it may be lean."""
    found = use_sharing(causal) and use_lean(causal)
    assert use_loops(causal) == (looped.module() is not None) or not shares(causal)
    return found


def hidden(causal: Any, packed: Packed) -> Tensor:
    """The model's last hidden states of a forest's tokens, [N, W]."""
    found = causal.base_model(
        input_ids=packed.ids_N[None],
        position_ids=packed.position_N[None],
        attention_mask=no_mask(packed.ids_N.device),
        use_cache=False,
        sharing=packed,
    )
    kept: Tensor = found.last_hidden_state[0, : len(packed.ids_N)]
    return kept


@pytest.fixture
def packed() -> Packed:
    rows = [torch.tensor(row).numpy() for row in ragged(7, seed=3)]
    rows += [torch.cat([torch.from_numpy(rows[0]), torch.tensor(end)]).numpy() for end in ([5, 6], [7])]
    return pack(grow(rows), torch.device("cpu"))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of every forward that was made as written."""
    calls: list[int] = []
    honest = Lean.__call__

    def counted(self: Lean, **given: Any) -> Any:
        calls.append(given["input_ids"].numel())
        return honest(self, **given)

    monkeypatch.setattr(Lean, "__call__", counted)
    return calls


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_it_is_the_forward_of_transformers(family: str, packed: Packed, used: list[int]) -> None:
    causal = model(FAMILIES[family])
    assert ready(causal)
    use_fast_linear(causal)
    right = hidden(causal, packed)
    used.clear()
    with lean(causal, torch.float32, None):
        found = hidden(causal, packed)
    assert used == [len(packed.ids_N)]
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_in_bfloat16_it_is_as_near_to_float32_as_transformers_modules_are(family: str, packed: Packed) -> None:
    causal = model(FAMILIES[family])
    assert ready(causal)
    use_fast_linear(causal)
    right = hidden(causal, packed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = hidden(causal, packed)
        with lean(causal, torch.bfloat16, None):
            ours = hidden(causal, packed)
    assert ours.dtype == theirs.dtype == torch.float32
    assert 0 < float((ours - right).norm()) < 1.2 * float((theirs - right).norm())


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        GPTNeoXConfig(**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}),
        GemmaConfig(**SMALL, head_dim=8),  # made of the same modules, other norms and embeddings
        GraniteConfig(**SMALL, residual_multiplier=0.5),  # likewise, other residuals
        Olmo2Config(**SMALL),  # norms elsewhere
        MistralConfig(**SMALL, sliding_window=8),
        # Queries grow with the position, from the 17th on: only the last positions tell.
        Ministral3Config(**SMALL, head_dim=8, rope_parameters=MINISTRAL3),
        # All its layers dense, of Llama's modules; half of a head turns.
        Glm4MoeConfig(**SMALL, head_dim=16, first_k_dense_replace=2, partial_rotary_factor=0.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_decoders_keep_their_own(config: Any, packed: Packed, used: list[int]) -> None:
    causal = model(config)
    sharing = use_sharing(causal)
    assert not use_lean(causal)
    used.clear()
    with torch.no_grad(), lean(causal, torch.float32, None):
        if sharing:
            hidden(causal, packed)
    assert used == []


def gone(*_: Any) -> Tensor:
    raise KeyError("gone")


def longer(x: Tensor, y: Tensor, norm: Any, *_: Any) -> tuple[Tensor, Tensor]:
    return x + y, functional.rms_norm(x + y, norm.weight.shape) * 1.01


@pytest.mark.parametrize("other", [longer, gone])
def test_a_decoder_that_only_looks_like_llama_is_found_out(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a later release of transformers computes, the probe compares with it."""
    causal = model(FAMILIES["llama"])
    assert ready(causal)
    monkeypatch.setattr(written, "_added", other)
    assert not use_lean(causal)


def test_a_parameter_of_a_layer_of_its_own_is_not_overlooked() -> None:
    """It may start as a one that changes nothing, and be trained."""
    causal = model(FAMILIES["llama"])
    assert written.resembles(causal.base_model)
    causal.base_model.layers[0].scale = nn.Parameter(torch.ones(32))
    assert not written.resembles(causal.base_model)


def test_weights_of_a_large_model_are_never_copied(
    micro_model: str, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "MOST", 100)
    monkeypatch.setattr(linear, "MOST", 100)
    monkeypatch.setattr(linear, "laid_out", gone)
    monkeypatch.setattr(written, "laid_out", gone)
    policies = build_policies({"a": PolicySpec(micro_model)}, reference=False, critic=False, steps=1, seed=0)
    LocalEngine(policies).generate({"a": make_says(ragged(3, seed=1), Sampling(max_new_tokens=9))})
    assert used == []


def test_a_prefill_keeps_no_queries() -> None:
    causal = model(FAMILIES["llama"])
    assert ready(causal)
    kept: list[Tensor] = []
    honest = _Prefill.attend

    def attend(self: _Prefill, layer: int, *given: Any) -> Tensor:
        found = honest(self, layer, *given)
        kept.extend(self.kept[layer])
        return found

    with pytest.MonkeyPatch.context() as patch, torch.no_grad(), lean(causal, torch.float32, None):
        patch.setattr(_Prefill, "attend", attend)
        Cascade(causal, [list(range(20))], [0], [0, 0], 4, None)
    assert len(kept) == 4 and all(x.untyped_storage().nbytes() == x.nbytes for x in kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_layer_that_is_one_loop_is_that_in_parts(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if looped.module() is None:
        pytest.skip("no compiled loops")
    if (family, dtype) == ("qwen3", torch.bfloat16):
        pytest.skip("in parts only")
    causal = model(FAMILIES[family])
    assert ready(causal) and use_loops(causal)
    norms = [norm for norm in causal.modules() if hasattr(norm, "variance_epsilon")]
    for number, norm in enumerate(norms):
        norm.variance_epsilon = 0.01 * (number + 1)
    found, parts = [], list[int]()
    honest = Looped.attend_heads
    monkeypatch.setattr(Looped, "attend_heads", lambda *given: (parts.append(1), honest(*given))[1])
    for whole in (True, False):
        with looped.tried(True), lean(causal, dtype, None), monkeypatch.context() as patch:
            if not whole:
                patch.setattr(causal.base_model.__dict__["forward"], "loops", None)
            memory = Looped(causal, [[3, 4, 5], [6]], [0, 0], [0, 1, 0, 1, 1], 2, None)
            at = torch.tensor([3, 1, 3, 1, 1])
            found.append([memory.step(torch.tensor([7, 8, t, 9, 2]), at + t) for t in (0, 1)])
    assert len(parts) == 2 * len(causal.base_model.layers), "in parts the second time only"
    for whole_BW, parts_BW in zip(*found, strict=True):
        torch.testing.assert_close(whole_BW, parts_BW, rtol=1e-5, atol=1e-5 * float(parts_BW.abs().max()))


def test_which_layers_are_one_loop() -> None:
    if looped.module() is None:
        pytest.skip("no compiled loops")
    cases = (
        (FAMILIES["llama"], torch.float32, True),
        (FAMILIES["llama"], torch.bfloat16, True),
        (LlamaConfig(**SMALL, hidden_act="gelu"), torch.float32, False),
        (LlamaConfig(**{**SMALL, "intermediate_size": 47}), torch.float32, True),
        (LlamaConfig(**{**SMALL, "intermediate_size": 47}), torch.bfloat16, False),  # which comes in pairs
        (FAMILIES["qwen3"], torch.float32, True),
        (FAMILIES["qwen3"], torch.bfloat16, False),  # whose heads are float32 after their norms
    )
    for config, dtype, expected in cases:
        causal = model(config)
        assert ready(causal) and use_loops(causal)
        with looped.tried(True):
            assert (Lean(causal.base_model, dtype, None).loops is not None) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj", "down_proj"], ["up_proj"]])
@torch.no_grad()
def test_adapters_in_a_layer_that_is_one_loop_are_those_in_parts(
    targets: Any, dtype: torch.dtype, micro_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs of rows with adapters of two ranks, one odd, and the bare base between them; then one run leaves."""
    if looped.module() is None:
        pytest.skip("no compiled loops")
    specs = {
        "a": PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=3, targets=targets)),
        "b": PolicySpec(micro_model, weights="frozen"),
        "c": PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=5, targets=targets)),
    }
    torch.manual_seed(0)
    policies = build_policies(specs, reference=False, critic=False, steps=1, seed=0)
    for policy in policies.values():
        for parameter in policy.parameters if policy.trainable else ():
            nn.init.normal_(parameter, std=0.1)
    shared, found, parts = policies["a"].weights.shared, [], list[int]()
    honest = Looped.attend_heads
    monkeypatch.setattr(Looped, "attend_heads", lambda *given: (parts.append(1), honest(*given))[1])
    speakers, ids, at = [0, 0, 1, 2, 2, 2], torch.tensor([7, 8, 1, 9, 2, 4]), torch.tensor([3, 3, 1, 2, 2, 2])
    for whole, kind in ((True, dtype), (False, dtype), (False, torch.float32)):
        with (
            grouped(shared, [policies[name].weights.adapter for name in specs]) as adapters,
            looped.tried(True),
            lean(shared.causal, kind, adapters),
            monkeypatch.context() as patch,
        ):
            if not whole:
                patch.setattr(trunk(shared.causal).__dict__["forward"], "loops", None)
            memory = Looped(shared.causal, [[3, 4, 5], [6], [8, 9]], [0, 1, 2], [0, 0, 1, 2, 2, 2], 2, adapters)
            adapters.split(speakers)
            found.append([memory.step(ids, at)])
            memory.keep(torch.tensor([0, 1, 5, 3, 4]), torch.tensor([2]))
            adapters.split([0, 0, 2, 2, 2])
            found[-1].append(memory.step(ids[[0, 1, 5, 3, 4]], at[[0, 1, 5, 3, 4]] + 1))
    assert len(parts) == 4 * len(trunk(shared.causal).layers), "in parts the second and third time only"
    for whole_BW, parts_BW, exact_BW in zip(*found, strict=True):
        off = 1e-5 * float(exact_BW.norm()) + 1.5 * float((parts_BW - exact_BW).norm())
        assert float((whole_BW - exact_BW).norm()) < off, "in bfloat16 what unequal runs add is rounded less often"


def test_afterwards_the_model_is_as_before(packed: Packed) -> None:
    causal = model(FAMILIES["llama"])
    assert ready(causal)
    forward, right = causal.base_model.forward, hidden(causal, packed)
    with pytest.raises(KeyboardInterrupt), lean(causal, torch.float32, None):
        raise KeyboardInterrupt
    assert causal.base_model.forward == forward
    assert torch.equal(hidden(causal, packed), right)
    causal.base_model.forward = somebodys = forward.__get__(causal.base_model)
    with lean(causal, torch.float32, None), lean(causal, torch.float32, None):
        pass
    assert causal.base_model.forward is somebodys


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj", "down_proj"], ["up_proj"]])
@torch.no_grad()
def test_every_row_has_its_own_adapter(targets: Any, dtype: torch.dtype, micro_model: str, used: list[int]) -> None:
    """Adapters of two ranks, some layers without any, and the bare base between them."""
    specs = {
        "a": PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=3, targets=targets)),
        "b": PolicySpec(micro_model, weights="frozen"),
        "c": PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=5, targets=targets)),
    }
    policies = build_policies(specs, reference=False, critic=False, steps=1, seed=0)
    torch.manual_seed(0)
    for policy in policies.values():
        for parameter in policy.parameters if policy.trainable else ():
            nn.init.normal_(parameter, std=0.2)  # with louder ones a rounded model is another one
    shared = policies["a"].weights.shared
    rows = [torch.tensor(row).numpy() for row in ragged(9, seed=4)]
    forest = grow(rows, [0, 0, 0, 0, 1, 1, 2, 2, 2])
    packed = pack(forest, torch.device("cpu"))
    speaker_N = [*forest.kind_N.tolist(), *[2] * (len(packed.ids_N) - len(forest.kind_N))]
    with grouped(shared, [policies[name].weights.adapter for name in specs]) as adapters:
        adapters.split(speaker_N)
        right = hidden(shared.causal, packed)
        used.clear()
        computing = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float32)
        with computing:
            theirs = hidden(shared.causal, packed)
            with lean(shared.causal, dtype, adapters):
                ours = hidden(shared.causal, packed)
    assert used == [len(packed.ids_N)]
    off = 1e-5 if dtype == torch.float32 else 1.2 * float((theirs - right).norm() / right.norm())
    assert float((ours - right).norm()) < off * float(right.norm())
    with grouped(shared, [None]):
        assert float((hidden(shared.causal, packed) - right).norm()) > 0.1 * float(right.norm())


def test_long_turns_are_made_as_written_and_short_ones_are_not(micro_model: str, used: list[int]) -> None:
    policies = build_policies({"a": PolicySpec(micro_model)}, reference=False, critic=False, steps=1, seed=0)
    engine = LocalEngine(policies)
    used.clear()
    for tokens, expected in ((7, False), (8, True)):
        engine.generate({"a": make_says(ragged(3, seed=1), Sampling(max_new_tokens=tokens))})
        assert bool(used) == expected


def test_micro_models_are_of_the_kind(micro_model: str) -> None:
    causal: PreTrainedModel = AutoModelForCausalLM.from_pretrained(micro_model)
    assert written.resembles(causal.base_model)
