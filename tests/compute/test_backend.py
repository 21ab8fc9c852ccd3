"""Which backend computes for which model, and why not another."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flash import one_by_one
from micro import save_micro
from model_families import FAMILIES, SMALL, model
from policy_cases import Build, make_batch, make_family, make_says, ragged
from torch import Tensor, nn
from torch.nn.attention import varlen
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaConfig,
    Gemma2Config,
    GemmaConfig,
    Glm4MoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

from coevolve.compute import backend
from coevolve.compute.backend import choose
from coevolve.compute.torch_backend import TorchBackend
from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.models.policy import context_of
from coevolve.models.spec import PolicySpec
from coevolve.models.weights import Base
from coevolve.runtime import processor
from coevolve.types import Sampling

MINISTRAL3 = {
    "rope_type": "default", "rope_theta": 10000.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
NEOX = {k: v for k, v in SMALL.items() if k != "num_key_value_heads"}
TINY = {"vocab_size": SMALL["vocab_size"], "n_embd": 32, "n_layer": 2, "n_head": 4}

EXPERTS = {
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1,
}  # fmt: skip


def based(config: Any) -> Base:
    return Base(model(config))


@pytest.mark.parametrize(
    ("config", "tree"),
    [
        (LlamaConfig(**SMALL), True),
        (Qwen2Config(**SMALL), True),
        (Qwen3Config(**SMALL, head_dim=8), True),
        (GPTNeoXConfig(**NEOX), True),
        (GPT2Config(**TINY, n_positions=64), True),
        (GPT2Config(**TINY, n_positions=12), False),  # too few positions to try
        (MistralConfig(**SMALL, sliding_window=4096), False),
        (Gemma2Config(**SMALL, head_dim=8), False),  # capped scores, windows
        (DiffLlamaConfig(**SMALL), True),  # every layer attends twice
        (Qwen2MoeConfig(**SMALL, **EXPERTS), True),
        # its window is in the mask alone, and longer than what is tried
        (Qwen2MoeConfig(**SMALL, **EXPERTS, use_sliding_window=True, sliding_window=20, max_window_layers=2), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_torch_has_prefix_trees_or_leaves_the_model_alone(config: Any, tree: bool) -> None:
    torch.manual_seed(0)
    base = Base(AutoModelForCausalLM.from_config(config).eval())
    before, ids = base.causal.config._attn_implementation, torch.arange(10)[None]
    logits = base.causal(ids).logits
    chosen = choose(base, "torch", "some/model")
    assert (chosen.name, chosen.uses_prefix_tree) == ("torch", tree)
    kind = "prefix tree" if tree else "rows apart (attention of the model's own kind)"
    assert chosen.about.startswith(f"torch, {kind}")
    torch.testing.assert_close(base.causal(ids).logits, logits)
    assert tree or base.causal.config._attn_implementation == before


def wrongly(*given: Any, **how: Any) -> Tensor:
    """Without the mask's offset: the first query of a sequence sees its first key alone."""
    q, k, v, q_starts, k_starts, q_most, _ = given
    keys = torch.cat(
        [torch.arange(i, i + n) for i, n in zip(k_starts.tolist(), q_starts.diff().tolist(), strict=False)]
    )
    return one_by_one(q, k[keys], v[keys], q_starts, q_starts, q_most, q_most, **how)


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (one_by_one, None),
        (wrongly, "it gives other numbers than PyTorch's attention with a mask"),
        (None, "it fails: "),  # PyTorch's own, which has none for this device
    ],
)
def test_flash_attention_is_used_if_it_gives_the_same(
    kernel: Any, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel is not None:
        monkeypatch.setattr(varlen, "varlen_attn", kernel)
    base = Base(AutoModelForCausalLM.from_config(Qwen2Config(**SMALL)).eval())
    assert choose(base, "torch", "some/model").about == "torch, prefix tree"  # only GPUs have it
    found = backend._why_not_flash(base)
    assert found == why or (kernel is None and found is not None and found.startswith("it fails: "))
    about = TorchBackend(base, True, "", found).about
    assert about == (
        "torch, prefix tree, FlashAttention in 16 bits" if why is None
        else f"torch, prefix tree; not FlashAttention: {found}"
    )  # fmt: skip


def test_hidden_states_by_flash_attention_are_those_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def counted(*given: Any, **how: Any) -> Tensor:
        calls.append(len(given[0]))
        return one_by_one(*given, **how)

    monkeypatch.setattr(varlen, "varlen_attn", counted)
    torch.manual_seed(0)
    base = Base(AutoModelForCausalLM.from_config(Qwen2Config(**SMALL)).eval())
    choose(base, "torch", "some/model")
    batch = make_family(3, seed=4)
    flash, other = (TorchBackend(base, True, "", why) for why in (None, "it is not asked for"))
    with torch.no_grad():
        assert torch.equal(flash.hidden(batch), other.hidden(batch)) and calls == []  # not in float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, wanted = flash.hidden(batch), other.hidden(batch)
    assert len(calls) == base.causal.config.num_hidden_layers
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def test_long_ropes_positions_end_where_its_frequencies_change() -> None:
    """There a long row would change the log-probabilities of the others in its batch."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = Phi3Config(**SMALL | {"pad_token_id": 0}, rope_parameters=rope, original_max_position_embeddings=32)
    assert (context_of(config), context_of(LlamaConfig(**SMALL))) == (32, 64)
    causal = model(config)
    short, rows = torch.arange(1, 9)[None], torch.arange(1, 49)[None]
    both = torch.cat([torch.cat([short, short.new_zeros(1, 40)], 1), rows])
    alone, beside = causal(short).logits[0], causal(both).logits[0, :8]
    assert (alone - beside).abs().max() > 1e-3
    torch.testing.assert_close(causal(both[:, :32]).logits[0, :8], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_decoders_of_llamas_kind_are_the_loops(family: str) -> None:
    pytest.importorskip("numba")
    base = based(FAMILIES[family])
    for asked in ("auto", "cpu"):
        chosen = choose(base, asked, "some/model")  # type: ignore[arg-type]
        assert (chosen.name, chosen.uses_prefix_tree, chosen.about) == ("cpu", True, "cpu, compiled loops")
    assert type(base.causal.base_model.layers[0].mlp.down_proj) is nn.Linear
    assert "forward" not in vars(base.causal.base_model)


def test_it_says_where_bfloat16_is_multiplied_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    ours, theirs = (choose(based(FAMILIES["llama"]), asked, "m") for asked in ("cpu", "torch"))  # type: ignore[arg-type]
    for faster in (False, True):
        monkeypatch.setattr(processor, "_least_rows", lambda kept, faster=faster: 256 if faster else math.inf)
        said = "cpu, compiled loops" + ", layers of updates multiply bfloat16 in float32" * faster
        assert backend.about(ours, torch.bfloat16) == said
        assert backend.about(ours, torch.float32) == "cpu, compiled loops"
        assert backend.about(theirs, torch.bfloat16) == theirs.about


OTHERS: dict[str, tuple[Any, str]] = {
    "GPT-2": (GPT2Config(**TINY, n_positions=64), "it is no decoder of Llama's kind"),
    "GPT-NeoX": (GPTNeoXConfig(**NEOX), "it is no decoder of Llama's kind"),
    "made of the same modules, other norms and embeddings": (
        GemmaConfig(**SMALL, head_dim=8),
        "compiled loops fail",
    ),
    "likewise, other residuals": (
        GraniteConfig(**SMALL, residual_multiplier=0.5),
        "compiled loops give other numbers than the model",
    ),
    "norms elsewhere": (Olmo2Config(**SMALL), "its layers are not Llama's"),
    "a window": (MistralConfig(**SMALL, sliding_window=8), "its attention is of another kind"),
    "queries that grow from the 17th position on: only the last positions tell": (
        Ministral3Config(**SMALL, head_dim=8, rope_parameters=MINISTRAL3),
        "compiled loops give other numbers than the model",
    ),
    "all its layers dense, of Llama's modules; half of a head turns": (
        Glm4MoeConfig(**SMALL, head_dim=16, first_k_dense_replace=2, partial_rotary_factor=0.5),
        "compiled loops fail: NotImplementedError('heads that are rotated in part')",
    ),
    "an odd number between gate and down, and bfloat16 comes in pairs": (
        LlamaConfig(**{**SMALL, "intermediate_size": 47}),
        "its layers are not Llama's",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_are_torchs_and_asking_for_the_loops_says_why(kind: str) -> None:
    pytest.importorskip("numba")
    config, why = OTHERS[kind]
    assert choose(based(config), "auto", "some/model").name == "torch"
    with pytest.raises(ValueError) as raised:
        choose(based(config), "cpu", "some/model")
    message = str(raised.value)
    assert message.startswith(f"compute is cpu, which does not fit the model 'some/model': {why}")
    assert message.endswith("; say compute: auto") and "\n" not in message


def test_the_reference_takes_any_model_and_leaves_its_attention_alone() -> None:
    for config in (LlamaConfig(**SMALL), MistralConfig(**SMALL, sliding_window=8), GPT2Config(**TINY, n_positions=12)):
        base = based(config)
        before = base.causal.config._attn_implementation
        chosen = choose(base, "reference", "some/model")
        assert (chosen.name, chosen.uses_prefix_tree) == ("reference", False)
        assert base.causal.config._attn_implementation == before != "coevolve"


def why_not(base: Base) -> str:
    with pytest.raises(ValueError, match=r"^compute is cpu, which does not fit the model 'm': ") as raised:
        choose(base, "cpu", "m")
    return str(raised.value).partition("'m': ")[2].removesuffix("; say compute: auto")


def test_without_numba_there_are_no_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert choose(based(FAMILIES["llama"]), "auto", "m").name == "torch"
    assert why_not(based(FAMILIES["llama"])) == "numba is not installed (coevolve[fast])"


class Broken:
    """A finder of modules under which importing the compiled loops raises an error, as a numba that fits no NumPy."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def find_spec(self, name: str, *_: Any) -> None:
        if name.startswith("coevolve.compute.cpu"):
            raise self.error


@pytest.mark.parametrize("error", [ImportError("numba needs another NumPy"), SystemError("numba was made elsewhere")])
def test_a_numba_that_fails_is_as_none_and_says_so(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of a dry run, too."""
    pytest.importorskip("numba")
    for name in [name for name in sys.modules if name.startswith("coevolve.compute.cpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(error), *sys.meta_path])
    assert choose(based(FAMILIES["llama"]), "auto", "m").name == "torch"
    assert why_not(based(FAMILIES["llama"])) == f"compiled loops fail: {error!r}"
    causal, here = model(FAMILIES["llama"]), torch.device("cpu")
    assert backend.planned(causal, here, "auto") == ("torch", f"torch; not cpu: compiled loops fail: {error!r}")
    with pytest.raises(ValueError, match=r"^compute is cpu, which does not fit: compiled loops fail: "):
        backend.planned(causal, here, "cpu")


def test_a_model_elsewhere_is_not_for_the_loops() -> None:
    elsewhere: Any = SimpleNamespace(causal=SimpleNamespace(device=torch.device("cuda", 1)))
    assert backend._why_not_cpu(elsewhere, True) == "it is on cuda:1"


def test_weights_of_a_large_model_are_never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    written: Any = pytest.importorskip("coevolve.compute.cpu.decoder")
    numbers = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    monkeypatch.setattr(written, "MOST", numbers)
    assert choose(based(FAMILIES["llama"]), "auto", "m").name == "cpu"
    monkeypatch.setattr(written, "MOST", numbers - 1)
    assert choose(based(FAMILIES["llama"]), "auto", "m").name == "torch"
    assert why_not(based(FAMILIES["llama"])) == "it has more than 0 million weights to copy for every rollout"


def test_weights_that_nobody_trains_may_be_more_because_they_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: Any = pytest.importorskip("coevolve.compute.cpu.decoder")
    numbers = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    monkeypatch.setattr(written, "MOST", 0)
    monkeypatch.setattr(written, "MOST_KEPT", numbers)
    assert choose(based(FAMILIES["llama"]), "auto", "m", kept=True).name == "cpu"
    monkeypatch.setattr(written, "MOST_KEPT", numbers - 1)
    assert choose(based(FAMILIES["llama"]), "auto", "m", kept=True).about.endswith("million weights to copy and keep")


def test_a_large_head_is_not_copied_to_sample(build_policy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    by_loops: Any = pytest.importorskip("coevolve.compute.cpu.backend")
    policy, says, copies, turns = build_policy(compute="cpu"), make_says(ragged(3, seed=1), Sampling(9)), [], []
    honest = by_loops.panels

    def counted(*given: Any) -> Any:
        copies.append(given)
        return honest(*given)

    monkeypatch.setattr(by_loops, "panels", counted)
    for most in (1 << 28, 100):
        monkeypatch.setattr(by_loops, "MOST", most)
        turns.append(LocalEngine({"a": policy}).generate({"a": says})["a"])
    assert len(copies) == 1
    assert [turn.action_ids for turn in turns[0]] == [turn.action_ids for turn in turns[1]]


def test_a_parameter_of_a_layer_of_its_own_is_not_overlooked() -> None:
    """It may start as a one that changes nothing, and be trained."""
    pytest.importorskip("numba")
    base = based(FAMILIES["llama"])
    base.causal.base_model.layers[0].scale = nn.Parameter(torch.ones(32))
    assert why_not(base) == "its layers are not Llama's"


def longer(honest: Any) -> Any:
    return lambda *given: tuple(1.01 * x if i else x for i, x in enumerate(honest(*given)))


def gone(_: Any) -> Any:
    def lost(*_: Any) -> Tensor:
        raise KeyError("gone")

    return lost


@pytest.mark.parametrize(("other", "why"), [(longer, "give other numbers than the model"), (gone, "fail: KeyError")])
@pytest.mark.parametrize("module", ["decoder", "training"])
def test_a_decoder_that_only_looks_like_llama_is_found_out(
    module: str, other: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a later release of transformers computes, it is compared with it: rollouts, and updates."""
    where: Any = pytest.importorskip(f"coevolve.compute.cpu.{module}")
    assert choose(based(FAMILIES["llama"]), "auto", "m").name == "cpu"
    monkeypatch.setattr(where, "_added", other(where._added))
    assert choose(based(FAMILIES["llama"]), "auto", "m").name == "torch"
    assert why_not(based(FAMILIES["llama"])).startswith(f"compiled loops {why}")


@pytest.mark.parametrize("late", [False, True])
def test_loops_that_are_wrong_are_not_used(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong everywhere, or at late positions only."""
    training: Any = pytest.importorskip("coevolve.compute.cpu.training")
    honest = training.forward

    def wrong(body: Any, tree: Any, *given: Any) -> Tensor:
        off = 1.01 if not late or int(tree.position_N.max()) > 40 else 1.0
        found: Tensor = honest(body, tree, *given) * off
        return found

    monkeypatch.setattr(training, "forward", wrong)
    assert why_not(based(FAMILIES["llama"])) == "compiled loops give other numbers than the model"


def test_steps_that_are_wrong_are_not_used_however_many_rows_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, and more, may be computed otherwise."""
    cached: Any = pytest.importorskip("coevolve.compute.cpu.attention")
    honest = cached.PrefixCache.step

    def wrong(self: Any, ids_B: Tensor, position_B: Tensor) -> Tensor:
        found: Tensor = honest(self, ids_B, position_B)
        return 1.01 * found if len(found) > 3 else found

    monkeypatch.setattr(cached.PrefixCache, "step", wrong)
    assert why_not(based(FAMILIES["llama"])) == "compiled loops give other numbers than the model"


def test_a_wrong_attention_of_ours_is_found_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = backend.PathAttention.attend

    def wrong(self: Any, *given: Any) -> Tensor:
        return 1.01 * honest(self, *given)

    monkeypatch.setattr(backend.PathAttention, "attend", wrong)
    chosen = choose(based(FAMILIES["llama"]), "auto", "m")
    assert (chosen.name, chosen.uses_prefix_tree) == ("torch", False)
    if importlib.util.find_spec("numba") is not None:
        assert why_not(based(FAMILIES["llama"])) == "its attention is of another kind"


def test_a_full_policy_beside_its_reference_has_a_copy_and_the_same_backend(micro_model: str) -> None:
    """Chosen once for what was loaded; each computes with its own weights."""
    spec = PolicySpec(micro_model)
    policy = build_policies({"a": spec}, reference=True, critic=False, steps=1, seed=0)["a"]
    assert policy.reference is not None
    ours, theirs = policy.backend, policy.reference.base.backend
    assert type(ours) is type(theirs) and ours.about == theirs.about and ours is not theirs
    batch = make_batch(3, seed=1)
    with torch.no_grad():
        assert torch.equal(ours.hidden(batch), theirs.hidden(batch))
        policy.weights.base.causal.base_model.embed_tokens.weight.mul_(2)
        assert not torch.equal(ours.hidden(batch), theirs.hidden(batch))


def test_backends_that_differ_share_no_base(micro_model: str) -> None:
    specs = {c: PolicySpec(micro_model, weights="frozen", compute=c) for c in ("reference", "torch", "auto")}  # type: ignore[arg-type]
    built = build_policies(specs, reference=False, critic=False, steps=1, seed=0)
    assert [built[name].backend.name for name in ("reference", "torch")] == ["reference", "torch"]
    assert len({id(policy.weights.base) for policy in built.values()}) == 3


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="compute is 'gpu'; want one of auto, reference, torch, cpu"):
        PolicySpec("m", compute="gpu")  # type: ignore[arg-type]


def results(policy: Any) -> tuple[Any, ...]:
    """What it samples, says of a batch, and learns from it."""
    batch = make_batch(5, seed=2)
    for parameter in policy.parameters:
        parameter.grad = None
    out = policy.outputs(batch)
    (out.logp_BT.sum() + out.entropy_BT.sum()).backward()
    turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(5, seed=1) * 2, Sampling(9))})["a"]
    return (
        [turn.action_ids for turn in turns],
        [torch.tensor(turn.logps) for turn in turns],
        [out.logp_BT.detach(), out.entropy_BT.detach(), *(p.grad.clone() for p in policy.parameters)],
    )


@pytest.mark.parametrize("compute", ["auto", "torch", "reference"])
def test_threads_after_loading_do_not_change_what_computes(compute: str, build_policy: Build) -> None:
    policy, before = build_policy(compute=compute), torch.get_num_threads()
    chosen, (ids, logps, numbers) = policy.backend, results(policy)
    try:
        torch.set_num_threads(2)
        assert policy.backend is chosen
        again_ids, again_logps, again = results(policy)
    finally:
        torch.set_num_threads(before)
    assert again_ids == ids
    # Of several threads products may add up in another order.
    for ours, theirs in zip([*again_logps, *again], [*logps, *numbers], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6 * max(1.0, float(theirs.abs().max())))


def test_threads_at_loading_have_no_say(build_policy: Build) -> None:
    """A model is loaded with many threads and samples in processes of one."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(build_policy().backend.about)
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


ALONE = """
import sys
from coevolve.learners.build import build_policies
from coevolve.models.spec import PolicySpec

policies = build_policies({"a": PolicySpec(sys.argv[1])}, reference=False, critic=False, steps=1, seed=0)
print(policies["a"].backend.about)
"""


@pytest.mark.parametrize("variables", [{"NUMBA_DISABLE_JIT": "1"}, {"OMP_NUM_THREADS": "2"}])
def test_what_the_environment_says(variables: dict[str, str], micro_model: str) -> None:
    """Where numba compiles nothing there are no loops, and a number of threads changes nothing."""
    pytest.importorskip("numba")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, micro_model], env={**os.environ, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    off = "torch, prefix tree; not cpu: numba is told not to compile (NUMBA_DISABLE_JIT)"
    assert done.stdout.strip() == (off if "NUMBA_DISABLE_JIT" in variables else "cpu, compiled loops")


def test_heads_of_an_odd_size_are_no_obstacle(tmp_path: Path, build_policy: Build) -> None:
    """GPT-2 with heads of 15 numbers, which models that turn cannot have."""
    torch.manual_seed(0)
    config = GPT2Config(**{**TINY, "n_embd": 30, "n_head": 2}, n_positions=64)
    odd = save_micro(AutoModelForCausalLM.from_config(config), tmp_path)
    says, turns = make_says([*ragged(5, seed=2) * 2], Sampling(9)), []
    for compute in ("auto", "reference"):
        policy = build_policy(model=odd, compute=compute)
        assert policy.backend.uses_prefix_tree == (compute == "auto")
        turns.append(LocalEngine({"a": policy}).generate({"a": says})["a"])
    for a, b in zip(*turns, strict=True):
        assert a.action_ids == b.action_ids
        torch.testing.assert_close(torch.tensor(a.logps), torch.tensor(b.logps), rtol=1e-5, atol=1e-5)
