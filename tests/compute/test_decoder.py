"""The written-out forward of a rollout is that of transformers' modules, for every decoder that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_families import FAMILIES, model, ready, some_tree
from policy_cases import Build, make_says, ragged
from torch import Tensor, nn

from coevolve.compute.attention import PathAttention
from coevolve.compute.prefix_tree import PrefixTree, filled, grow
from coevolve.compute.torch_backend import RowCache, tree_hidden
from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.adapters import Adapters
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.models.weights import Base, trunk
from coevolve.types import Sampling

written: Any = pytest.importorskip("coevolve.compute.cpu.decoder")
Decoder: Any = written.Decoder
Cache: Any = pytest.importorskip("coevolve.compute.cpu.attention").PrefixCache
TreeAttention: Any = pytest.importorskip("coevolve.compute.cpu.attention").TreeAttention
Panels: Any = pytest.importorskip("coevolve.compute.cpu.products").Panels

CPU = torch.device("cpu")
BARE = Adapters([None], CPU)


def by_modules(causal: Any, tree: PrefixTree) -> Tensor:
    """The model's last hidden states of a tree's tokens, [N, W]."""
    return tree_hidden(causal, PathAttention(tree, CPU), torch.arange(len(tree.ids_N)))


def by_decoder(causal: Any, tree: PrefixTree, dtype: torch.dtype, adapters: Adapters = BARE) -> Tensor:
    """The same as written out."""
    decoder, packed = Decoder(trunk(causal), dtype, adapters), TreeAttention(tree)
    found: Tensor = decoder(packed.ids_N[None], packed.position_N[None], packed)[0]
    return found[: len(tree.ids_N)]


def rounded(dtype: torch.dtype) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_it_is_the_forward_of_transformers(family: str) -> None:
    causal = model(FAMILIES[family])
    assert ready(causal).backend.name == "cpu"
    right = by_modules(causal, some_tree())
    found = by_decoder(causal, some_tree(), torch.float32)
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_in_bfloat16_it_is_as_near_to_float32_as_transformers_modules_are(family: str) -> None:
    causal = model(FAMILIES[family])
    ready(causal)
    right = by_modules(causal, some_tree())
    with rounded(torch.bfloat16):
        theirs, ours = by_modules(causal, some_tree()), by_decoder(causal, some_tree(), torch.bfloat16)
    assert ours.dtype == theirs.dtype == torch.float32
    assert 0 < float((ours - right).norm()) < 1.2 * float((theirs - right).norm())


def test_micro_models_are_of_the_kind(build_policy: Build) -> None:
    assert written.unlike(trunk(build_policy(compute="torch").weights.base.causal), kept=False) is None


@pytest.mark.parametrize("family", ["llama", "llama, another gate", "qwen2", "qwen3", "mistral"])
@torch.no_grad()
def test_new_tokens_are_those_of_transformers(family: str) -> None:
    """Rows of two prompts, two tokens one after the other; norms have epsilons of their own, those of heads one."""
    causal, found = model(FAMILIES[family]), []
    norms = {name: norm for name, norm in causal.named_modules() if hasattr(norm, "variance_epsilon")}
    for number, (name, norm) in enumerate(norms.items()):
        norm.variance_epsilon = 0.01 if name.endswith(("q_norm", "k_norm")) else 0.01 * (number + 1)
    at = torch.tensor([3, 1, 3, 1, 1])
    for kind, forward in ((Cache, Decoder(trunk(causal), torch.float32, BARE)), (RowCache, causal)):
        cache = kind(forward, BARE, [[3, 4, 5], [6]], [0, 0], [0, 1, 0, 1, 1], 2)
        BARE.split([0] * 5)
        found.append([cache.step(torch.tensor([7, 8, t, 9, 2]), at + t) for t in (0, 1)])
    for ours_BW, theirs_BW in zip(*found, strict=True):
        torch.testing.assert_close(ours_BW, theirs_BW, rtol=1e-5, atol=1e-5 * float(theirs_BW.abs().max()))


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_cache_under_autocast_is_narrow_and_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated keys are float32 there, and attention rounds them."""
    causal, found, dtypes = model(FAMILIES[family]), list[list[torch.Tensor]](), list[set[Any]]()
    for dtype in (torch.bfloat16, torch.float32):
        with monkeypatch.context() as patch, rounded(torch.bfloat16):
            patch.setattr(torch, "get_autocast_dtype", lambda kind, dtype=dtype: dtype)
            cache = RowCache(causal, BARE, [[3, 4, 5], [6]], [0, 0], [0, 1, 0], 2)
            found.append([cache.step(torch.tensor([7, 8, 9]), torch.tensor([3, 1, 3]) + t) for t in (0, 1)])
            dtypes.append({(layer.keys.dtype, layer.values.dtype) for layer in cache.layers.layers})
    assert dtypes == [{(torch.bfloat16,) * 2}, {(torch.float32,) * 2}]
    assert all(map(torch.equal, *found))


TARGETS = pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj", "down_proj"], ["up_proj"]])


def team(folder: str, targets: Any, loud: float) -> tuple[Base, list[str | None]]:
    """Adapters of two ranks, both odd, some layers without any, and the bare base between them."""
    specs = {
        "a": PolicySpec(folder, weights="lora", lora=LoraSpec(rank=3, targets=targets)),
        "b": PolicySpec(folder, weights="frozen"),
        "c": PolicySpec(folder, weights="lora", lora=LoraSpec(rank=5, targets=targets)),
    }
    torch.manual_seed(0)
    policies: dict[str, LocalLearner] = build_policies(specs, reference=False, critic=False, steps=1, seed=0)
    for policy in policies.values():
        for parameter in policy.parameters if policy.trainable else ():
            nn.init.normal_(parameter, std=loud)
    return policies["a"].weights.base, [policy.weights.adapter for policy in policies.values()]


@TARGETS
@torch.no_grad()
def test_adapters_of_rows_that_leave(targets: Any, micro_model: str) -> None:
    """Three runs of rows; then one run leaves. As transformers' modules compute it."""
    (base, names), found = team(micro_model, targets, 0.1), []
    ids, at = torch.tensor([7, 8, 1, 9, 2, 4]), torch.tensor([3, 3, 1, 2, 2, 2])
    stays = torch.tensor([0, 1, 5, 3, 4])
    for kind in (Cache, RowCache):
        with base.speaking(names) as adapters:
            forward = Decoder(trunk(base.causal), torch.float32, adapters) if kind is Cache else base.causal
            cache = kind(forward, adapters, [[3, 4, 5], [6], [8, 9]], [0, 1, 2], [0, 0, 1, 2, 2, 2], 2)
            adapters.split([0, 0, 1, 2, 2, 2])
            found.append([cache.step(ids, at)])
            cache.keep(stays, torch.tensor([2]))
            adapters.split([0, 0, 2, 2, 2])
            found[-1].append(cache.step(ids[stays], at[stays] + 1))
    for ours_BW, theirs_BW in zip(*found, strict=True):
        torch.testing.assert_close(ours_BW, theirs_BW, rtol=1e-5, atol=1e-5 * float(theirs_BW.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@TARGETS
@torch.no_grad()
def test_every_row_has_its_own_adapter(targets: Any, dtype: torch.dtype, micro_model: str) -> None:
    base, names = team(micro_model, targets, 0.2)  # with louder ones a rounded model is another one
    rows = [torch.tensor(row).numpy() for row in ragged(9, seed=4)]
    tree = grow(rows, [0, 0, 0, 0, 1, 1, 2, 2, 2])
    with base.speaking(names) as adapters:
        adapters.split([*tree.kind_N.tolist(), *[2] * (filled(len(tree.kind_N)) - len(tree.kind_N))])
        right = by_modules(base.causal, tree)
        with rounded(dtype):
            theirs = by_modules(base.causal, tree)
            ours = by_decoder(base.causal, tree, dtype, adapters)
    off = 1e-5 if dtype == torch.float32 else 1.2 * float((theirs - right).norm() / right.norm())
    assert float((ours - right).norm()) < off * float(right.norm())
    with base.speaking([None]):
        assert float((by_modules(base.causal, tree) - right).norm()) > 0.1 * float(right.norm())


def test_a_sampler_has_copies_of_the_weights_and_leaves_the_model_as_it_was(build_policy: Build) -> None:
    """They must not change inside, and so it is not seen; the next sampler sees it."""
    policy = build_policy(compute="cpu")
    causal, found = policy.weights.base.causal, []
    before = {name: (type(module), set(vars(module))) for name, module in causal.named_modules()}

    def first(sampler: Any) -> Tensor:
        logits: Tensor = sampler.logits(sampler.session([[3, 4, 5]], [0], [0], 2).hidden_UW)
        return logits

    for _ in range(2):
        with torch.no_grad(), policy.weights.base.speaking([None]) as adapters:
            sampler = policy.backend.sampler(adapters, torch.float32)
            found.append(first(sampler))
            causal.base_model.layers[0].mlp.down_proj.weight.mul_(1.5)
            found.append(first(sampler))
    assert torch.equal(found[0], found[1]) and torch.equal(found[2], found[3])
    assert not torch.allclose(found[0], found[2])
    assert {name: (type(module), set(vars(module))) for name, module in causal.named_modules()} == before
    assert "forward" not in vars(trunk(causal))


def test_an_interrupt_inside_a_rollout_leaves_nothing_behind(build_policy: Build) -> None:
    policy = build_policy(compute="cpu")

    def interrupted() -> None:
        with policy.weights.base.speaking([None]) as adapters:
            policy.backend.sampler(adapters, torch.float32)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert policy.weights.base.adapters is None
    says = make_says(ragged(3, seed=1), Sampling(4))
    assert len(LocalEngine({"a": policy}).generate({"a": says})["a"]) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 64, 200])
@torch.no_grad()
def test_logits_of_a_rollout_are_those_of_the_layer(rows: int, bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(24, 17, bias=bias), torch.randn(rows, 24)
    found = Panels([layer], dtype, torch.float32)(x)
    assert found.dtype == torch.float32
    off = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found, layer(x), rtol=off, atol=off)
