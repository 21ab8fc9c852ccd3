"""Every backend gives what the reference gives: hidden states, log-probabilities and entropies with their gradients,
and what is sampled.

In bfloat16 two ways of the same sum round otherwise, so there each is compared with the reference in float32: it may be
hardly further away than the reference itself in bfloat16.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from micro import save_micro
from model_families import FAMILIES, LLAMA3, SMALL
from policy_cases import make_batch, make_family, make_says, plain, ragged
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

from coevolve.compute import logprobs
from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.types import Batch, Sampling, Turn

pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")  # of adapters on GPT-2's head

Team = dict[str, LocalLearner]
Kind = Literal["full", "lora", "lora on the head"]

MODELS: dict[str, Any] = {
    "llama": LlamaConfig(**SMALL),
    "llama, tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama, biases, other rotation": FAMILIES["llama, biases, other rotation"],
    "llama, another gate": FAMILIES["llama, another gate"],
    "qwen2": FAMILIES["qwen2"],
    "qwen3": Qwen3Config(**SMALL, head_dim=12, rope_parameters=LLAMA3 | {"original_max_position_embeddings": 16}),
    "gpt2": GPT2Config(vocab_size=SMALL["vocab_size"], n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "mistral, a window": MistralConfig(**SMALL, sliding_window=8),
}
OURS = ("llama", "llama, tied", "llama, biases, other rotation", "llama, another gate", "qwen2", "qwen3")
"""Those that the compiled loops compute."""

PAIRS = [
    *((model, "cpu") for model in OURS),
    *((model, "torch") for model in MODELS),
    *((model, "rows apart") for model in ("llama", "gpt2")),
]
pairs = pytest.mark.parametrize(("model", "way"), PAIRS)
both_dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Team]:
    """team(model, way, dtype, kind) -> policies with the same weights whatever computes; nobody changes them."""

    @cache
    def folder(model: str) -> str:
        torch.manual_seed(0)
        causal = AutoModelForCausalLM.from_config(copy.deepcopy(MODELS[model]))
        for parameter in causal.parameters():
            if parameter.dim() == 1:  # biases that are not 0 and norms that are not 1
                nn.init.normal_(parameter, mean=0.5, std=0.2)
        return save_micro(causal, Path(tmp_path_factory.mktemp("model")))

    @cache
    def made(model: str, way: str, dtype: str = "float32", kind: Kind = "full") -> Team:
        if way == "cpu" and importlib.util.find_spec("numba") is None:
            pytest.skip("numba is not installed")
        targets: Any = "all-linear" if kind == "lora" else ["c_proj" if model == "gpt2" else "down_proj", "lm_head"]
        settings: dict[str, Any] = {"compute": "torch" if way == "rows apart" else way, "dtype": dtype}
        full = kind == "full"
        specs = {
            name: PolicySpec(
                folder(model), weights="full" if full else "lora", lora=LoraSpec(rank, targets=targets), **settings
            )
            for name, rank in ((("a", 4),) if full else (("a", 3), ("b", 5)))
        }
        policies = build_policies(specs, reference=not full, critic=False, steps=1, seed=0)
        generator = torch.Generator().manual_seed(1)
        for policy in policies.values():
            for parameter in () if full else policy.parameters:  # or adapters would change nothing
                nn.init.normal_(parameter, std=0.1, generator=generator)
        if way == "rows apart":
            plain(policies["a"], tree=False)
        assert policies["a"].backend.name == settings["compute"]
        assert policies["a"].backend.uses_prefix_tree == (way in ("cpu", "torch") and "window" not in model)
        return policies

    return made


def hidden(policy: LocalLearner, batch: Batch) -> Tensor:
    with torch.no_grad(), policy.active():
        found = policy.backend.hidden(batch)
    assert found.dtype == torch.float32 and len(found) == int(batch.mask_BT.sum())
    return found


def said(policy: LocalLearner, batch: Batch) -> list[Tensor]:
    """Log-probabilities and entropies of the actions; then, of some function of both, every parameter's gradient."""
    for parameter in policy.parameters:
        parameter.grad = None
    a_BT, b_BT = torch.randn((2, *batch.mask_BT.shape), generator=torch.Generator().manual_seed(2))
    with policy.weights.active():
        out = policy.outputs(batch)
        assert out.entropy_BT is not None
        (out.logp_BT * a_BT + out.entropy_BT * b_BT).sum().backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters]
    assert any(grad.any() for grad in grads)
    return [out.logp_BT.detach(), out.entropy_BT.detach(), *grads]


def near(ours: list[Tensor], theirs: list[Tensor], off: float = 2e-5) -> None:
    """But for the order of sums."""
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=off * float(y.abs().max()))


def all_near(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """What ``said`` finds; in gradients more cancels out."""
    near(ours[:2], theirs[:2])
    near(ours[2:], theirs[2:], off=1e-4)


def as_near(ours: list[Tensor], theirs: list[Tensor], exact: list[Tensor]) -> None:
    """As ``theirs``, and not without rounding."""

    def off(found: list[Tensor]) -> float:
        return float(
            sum((x - y).square().sum() / y.square().sum() for x, y in zip(found, exact, strict=True) if y.any())
        )

    assert 0 < off(ours) < 1.5**2 * off(theirs)


def all_as_near(*found: list[Tensor]) -> None:
    """What ``said`` finds: what it says, and the gradients."""
    as_near(*(numbers[:2] for numbers in found))
    as_near(*(numbers[2:] for numbers in found))


def both(n: int, seed: int) -> list[Batch]:
    """Ragged rows of nothing in common, and turns as they come out of plays."""
    return [make_batch(n, seed), make_family(2, seed)]


@pairs
def test_hidden_states(model: str, way: str, team: Callable[..., Team]) -> None:
    for batch in both(9, seed=1):
        found, right = (hidden(team(model, compute)["a"], batch) for compute in (way, "reference"))
        near([found], [right])


@pairs
def test_log_probabilities_and_entropies_and_all_gradients(model: str, way: str, team: Callable[..., Team]) -> None:
    for batch in both(9, seed=2):
        all_near(said(team(model, way)["a"], batch), said(team(model, "reference")["a"], batch))


@pairs
def test_in_bfloat16_all_of_it_is_as_near_to_float32(model: str, way: str, team: Callable[..., Team]) -> None:
    batch, ways = make_family(2, seed=3), ((way, "bfloat16"), ("reference", "bfloat16"), ("reference", "float32"))
    as_near(*([hidden(team(model, *given)["a"], batch)] for given in ways))
    all_as_near(*(said(team(model, *given)["a"], batch) for given in ways))


ADAPTED = [("llama", "cpu"), ("llama", "torch"), ("llama", "rows apart"), ("gpt2", "torch"), ("gpt2", "rows apart")]


@pytest.mark.parametrize("kind", ["lora", "lora on the head"])
@pytest.mark.parametrize(("model", "way"), ADAPTED)
def test_adapters_of_a_team(model: str, way: str, kind: Kind, team: Callable[..., Team]) -> None:
    """Of two ranks, on one base; also where the output layer has one, whose entropy then is another sum."""
    batch = make_family(2, seed=4)
    ours, theirs = (team(model, compute, "float32", kind) for compute in (way, "reference"))
    for name in ("a", "b"):
        all_near(said(ours[name], batch), said(theirs[name], batch))
    first, second = (hidden(ours[name], batch) for name in ("a", "b"))
    assert not torch.allclose(first, second, rtol=1e-2)


@pytest.mark.parametrize("kind", ["lora", "lora on the head"])
@pytest.mark.parametrize(("model", "way"), ADAPTED)
def test_in_bfloat16_adapters_are_as_near_to_float32(
    model: str, way: str, kind: Kind, team: Callable[..., Team]
) -> None:
    batch, ways = make_family(2, seed=4), ((way, "bfloat16"), ("reference", "bfloat16"), ("reference", "float32"))
    for name in ("a", "b"):
        all_as_near(*(said(team(model, *given, kind)[name], batch) for given in ways))


@pytest.mark.parametrize("kind", ["full", "lora", "lora on the head"])
@pytest.mark.parametrize("way", ["cpu", "torch", "rows apart", "reference"])
def test_gradients_through_pieces_of_the_vocabulary(
    way: str, kind: Kind, team: Callable[..., Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where probabilities are too many to be kept, some tokens at a time."""
    batch = make_family(3, seed=5)
    right = said(team("llama", "reference", "float32", kind)["a"], batch)
    monkeypatch.setattr(logprobs, "LOGITS_KEPT", 0)
    monkeypatch.setattr(logprobs, "LEAST_ROWS", 24)
    monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", 1)
    assert int(batch.mask_BT.sum()) > 3 * 24
    all_near(said(team("llama", way, "float32", kind)["a"], batch), right)


@pytest.mark.parametrize("kind", ["lora", "lora on the head"])
@pytest.mark.parametrize(("model", "way"), ADAPTED)
def test_annotations(model: str, way: str, kind: Kind, team: Callable[..., Team]) -> None:
    """Of the reference policy, which is the base with adapters off."""
    batch = make_family(2, seed=6)
    ours, theirs = (team(model, compute, "float32", kind)["a"].describe(batch) for compute in (way, "reference"))
    assert ours.kl_BT is not None and float(ours.kl_BT.max()) > 0.01
    for name in ("kl_BT", "logp_ref_BT"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("kind", ["lora", "lora on the head"])
@pytest.mark.parametrize("way", ["cpu", "torch", "rows apart", "reference"])
def test_the_kl_has_the_gradient_that_autograd_finds(
    way: str, kind: Kind, kept: bool, team: Callable[..., Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of policy and reference on one base, by plain transformers; its value is what describing finds."""
    if not kept:
        monkeypatch.setattr(logprobs, "LOGITS_KEPT", 0)
        monkeypatch.setattr(logprobs, "LEAST_ROWS", 24)
        monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", 1)
    batch, policy = make_family(2, seed=6), team("llama", way, "float32", kind)["b"]
    weight_BT = torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(2))
    found = []
    for say in (lambda: policy.outputs(batch, kl=True).kl_BT, lambda: naive_kl(policy, batch)):
        with policy.weights.active():
            kl_BT = say()
            assert kl_BT is not None
            grads = torch.autograd.grad((kl_BT * weight_BT).sum(), policy.parameters)
        found.append([kl_BT.detach(), *grads])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5 * max(1.0, float(theirs.abs().max())))
    described = policy.describe(batch).kl_BT
    assert described is not None
    torch.testing.assert_close(found[0][0], described, rtol=1e-4, atol=1e-5)


def naive_kl(policy: LocalLearner, batch: Batch) -> Tensor:
    """Row by row, all logits of the model at once."""
    assert policy.reference is not None
    causal, kl_BT = policy.weights.base.causal, torch.zeros(batch.mask_BT.shape)
    for b, (start, length) in enumerate(zip(batch.start_B.tolist(), batch.length_B.tolist(), strict=True)):
        ids = batch.ids_BS[b : b + 1, : length - 1]
        logp = (causal(input_ids=ids).logits[0, start - 1 :] / batch.temperature_B[b]).log_softmax(-1)
        with torch.no_grad(), policy.reference.active() as bare:
            ref = (bare(input_ids=ids).logits[0, start - 1 :] / batch.temperature_B[b]).log_softmax(-1)
        kl_BT[b, : length - start] = (logp.exp() * (logp - ref)).sum(-1)
    return kl_BT


def turns_of(policies: Team, sampling: Sampling) -> list[Turn]:
    """Of all together, in one call; most rows leave early."""
    says = {}
    for number, (name, policy) in enumerate(policies.items()):
        policy.eos = frozenset(range(0, 60, 7))
        says[name] = make_says([*ragged(5 + number, seed=number) * 3, *ragged(2, seed=9)], sampling, name)
    found = LocalEngine(policies).generate(says)
    return [turn for turns in found.values() for turn in turns]


def alike(ours: list[Turn], theirs: list[Turn]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a.action_ids, a.finished) == (b.action_ids, b.finished)
        torch.testing.assert_close(torch.tensor(a.logps), torch.tensor(b.logps), rtol=1e-4, atol=1e-4)
        assert a.excess == pytest.approx(b.excess, abs=1e-3)


SAMPLINGS = {
    "plain": Sampling(12),
    "hot": Sampling(12, temperature=1.3),
    "greedy": Sampling(12, temperature=0.0),
    "truncated": Sampling(12, temperature=0.8, top_k=9, top_p=0.9, repetition_penalty=1.2),
}


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize(("model", "way"), [("llama", "cpu"), ("llama", "torch"), ("gpt2", "rows apart")])
def test_turns_with_the_same_keys_are_the_same(model: str, way: str, kind: str, team: Callable[..., Team]) -> None:
    ours, theirs = (turns_of(team(model, compute), SAMPLINGS[kind]) for compute in (way, "reference"))
    alike(ours, theirs)
    assert kind == "greedy" or len({len(turn.action_ids) for turn in ours}) > 3, "some rows leave early"


@pytest.mark.parametrize(("model", "way"), [pair for pair in PAIRS if pair[0] != "llama"])
def test_turns_of_every_family(model: str, way: str, team: Callable[..., Team]) -> None:
    alike(*(turns_of(team(model, compute), SAMPLINGS["plain"]) for compute in (way, "reference")))


@pytest.mark.parametrize("kind", ["lora", "lora on the head"])
@pytest.mark.parametrize(("model", "way"), ADAPTED)
def test_turns_of_a_team_that_samples_together(model: str, way: str, kind: Kind, team: Callable[..., Team]) -> None:
    alike(*(turns_of(team(model, compute, "float32", kind), SAMPLINGS["plain"]) for compute in (way, "reference")))


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize(("model", "way"), ADAPTED)
def test_in_bfloat16_turns_are_the_same_but_for_rounding(
    model: str, way: str, kind: Kind, team: Callable[..., Team]
) -> None:
    """A uniform number may fall between two roundings, and what comes behind is another turn."""
    ours, theirs = (
        turns_of(team(model, compute, "bfloat16", kind), SAMPLINGS["plain"]) for compute in (way, "reference")
    )
    same = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.action_ids == b.action_ids]
    assert len(same) > 0.8 * len(ours)
    for a, b in same:
        torch.testing.assert_close(torch.tensor(a.logps), torch.tensor(b.logps), rtol=0.03, atol=0.03)


@pairs
@both_dtypes
def test_a_rollout_step_by_step(model: str, way: str, dtype: str, team: Callable[..., Team]) -> None:
    """Prompts of different lengths, one of one token; rows out of order; then rows leave and others take their
    places."""
    prompts, prompt_B = [[3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [6], [8, 9, 10]], [0, 2, 1, 0, 2]
    length_B, order = torch.tensor([len(prompts[u]) for u in prompt_B]), torch.tensor([0, 4, 2])

    def rollout(compute: str, dtype: str) -> list[Tensor]:
        policy = team(model, compute, dtype)["a"]
        with (
            torch.inference_mode(),
            policy.weights.base.speaking([None]) as adapters,
            policy.computing(),
        ):
            sampler = policy.backend.sampler(adapters, policy.dtype)
            cache = sampler.session(prompts, [0, 0, 0], prompt_B, 4)
            adapters.split([0] * 5)
            hidden = [cache.hidden_UW, cache.step(torch.tensor([7, 8, 9, 1, 2]), length_B)]
            hidden.append(cache.step(torch.tensor([5, 5, 0, 4, 3]), length_B + 1))
            cache.keep(order, torch.tensor([1]))
            adapters.split([0] * 3)
            hidden.append(cache.step(torch.tensor([6, 2, 9]), length_B[order] + 2))
            return [*hidden, *map(sampler.logits, hidden)]

    found, right = rollout(way, dtype), rollout("reference", dtype)
    assert all(x.dtype == torch.float32 for x in found)
    if dtype == "float32":
        near(found, right)
    else:
        as_near(found, right, rollout("reference", "float32"))
