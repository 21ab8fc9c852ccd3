"""Adapters in one forward against PEFT, one by one; and policies in one batch against each alone."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from policy_cases import EOS, TOKENS, handed_over, make_batch, make_rule, make_says, make_targets, plain, ragged

from coevolve.compute import prefix_tree as forest
from coevolve.compute.torch_backend import TorchBackend
from coevolve.engines import decode
from coevolve.engines.decode import _closed
from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.models.weights import Weights
from coevolve.runtime import processor
from coevolve.types import Sampling, Turn

pytestmark = pytest.mark.usefixtures("each_way")

FAMILIES = pytest.mark.parametrize("family", ["micro_model", "micro_gpt2"])
TEAM: dict[str, dict[str, Any]] = {
    "a": {"weights": "lora", "lora": LoraSpec(rank=4, alpha=8)},
    "b": {"weights": "frozen"},
    "c": {"weights": "lora", "lora": LoraSpec(rank=7, alpha=3)},
    "d": {"weights": "lora", "lora": LoraSpec(rank=2)},  # on fewer modules: ``team``
}
"""Ranks, scales and modules differ, and one is the bare base."""


def team(model: str, seed: int = 0, **changes: Any) -> dict[str, LocalLearner]:
    """The team, its adapters moved away from their start, at which they change nothing."""
    few = LoraSpec(rank=2, targets=["c_attn"] if "gpt2" in model else ["q_proj", "down_proj"])
    own = TEAM | {"d": TEAM["d"] | {"lora": few}}
    specs = {name: PolicySpec(model, **(settings | changes)) for name, settings in own.items()}
    policies = build_policies(specs, reference=False, critic=False, steps=5, seed=0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for policy in policies.values():
            for parameter in policy.parameters:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return policies


def adapters_of(policies: dict[str, LocalLearner]) -> list[str | None]:
    return [policy.weights.adapter for policy in policies.values()]


@contextlib.contextmanager
def by_peft(policy: LocalLearner) -> Iterator[Any]:
    """The model, whose layers compute this policy's adapter as PEFT does."""
    base, adapter = policy.weights.base, policy.weights.adapter
    assert base.adapters is None
    for layer in base.lora_layers:
        layer.enable_adapters(adapter is not None)
        if adapter is not None:
            layer.set_adapter(adapter)
    yield base.causal
    base._take_over()


def with_peft(policies: dict[str, LocalLearner], rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each policy's own rows through PEFT's layers."""
    found = []
    for policy, ids in zip(policies.values(), rows, strict=True):
        if len(ids) == 0:
            continue
        with by_peft(policy) as causal:
            found.append(causal(input_ids=ids).logits)
    return found


def some_rows(counts: Sequence[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, TOKENS, (count, 6), generator=generator) for count in counts]


def speakers(counts: Sequence[int], each: int) -> list[int]:
    return [i for i, count in enumerate(counts) for _ in range(count * each)]


@FAMILIES
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 4, 2, 3), (0, 5, 2, 0), (0, 0, 2, 0)])
def test_every_row_has_its_own_adapter(family: str, counts: tuple[int, ...], request: pytest.FixtureRequest) -> None:
    policies = team(request.getfixturevalue(family))
    causal, rows = policies["a"].weights.base.causal, some_rows(counts)
    with torch.no_grad():
        expected = torch.cat(with_peft(policies, rows))
        with policies["a"].weights.base.speaking(adapters_of(policies)) as adapters:
            adapters.split(speakers(counts, 6))
            found = causal(input_ids=torch.cat(rows)).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@FAMILIES
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 4, 2, 3)])
def test_gradients_of_all_adapters_are_those_of_each_alone(
    family: str, counts: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    policies = team(request.getfixturevalue(family))
    causal, rows = policies["a"].weights.base.causal, some_rows(counts)
    parameters = [p for policy in policies.values() for p in policy.parameters]
    weight = torch.randn(sum(counts), 6, 1, generator=torch.Generator().manual_seed(2))

    def gradients(logits: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        for parameter in parameters:
            parameter.grad = None
        (logits.log_softmax(-1).square() * weight).mean(-1).sum().backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]

    expected = [torch.zeros_like(p) for p in parameters]
    for policy, ids, own in zip(policies.values(), rows, weight.split(counts), strict=True):
        if policy.trainable:
            with by_peft(policy) as causal:
                found = gradients(causal(input_ids=ids).logits, own)
            expected = [e + f for e, f in zip(expected, found, strict=True)]
    for parameter in parameters:
        parameter.requires_grad_(True)
    with policies["a"].weights.base.speaking(adapters_of(policies)) as adapters:
        adapters.split(speakers(counts, 6))
        found = gradients(causal(input_ids=torch.cat(rows)).logits, weight)
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_under_bfloat16(micro_model: str) -> None:
    """As near to float32 as PEFT's own layers are."""
    policies, counts = team(micro_model), (2, 4, 3, 3)
    causal, rows = policies["a"].weights.base.causal, some_rows(counts)
    with torch.no_grad():
        exact = torch.cat(with_peft(policies, rows))
        with torch.autocast("cpu", torch.bfloat16):
            theirs = torch.cat(with_peft(policies, rows))
            with policies["a"].weights.base.speaking(adapters_of(policies)) as adapters:
                adapters.split(speakers(counts, 6))
                found = causal(input_ids=torch.cat(rows)).logits
    assert found.dtype == theirs.dtype == torch.bfloat16
    assert (found - exact).abs().mean() < 1.2 * (theirs - exact).abs().mean()
    assert (found - exact).abs().max() < 0.1 * exact.abs().max()


def test_what_adapters_add_is_multiplied_in_what_is_faster(micro_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX2 alone 128 rows take 44 times as long in bfloat16. Sums are rounded where those are."""
    policies, counts = team(micro_model, dtype="bfloat16"), (2, 4, 3, 3)
    base, found, seen = policies["a"].weights.base, [], set[torch.dtype]()
    layer = base.causal.base_model.layers[0].mlp.down_proj
    product, name = torch.bmm, policies["a"].weights.adapter
    both = [layer.lora_A[name].weight, layer.lora_B[name].weight]
    monkeypatch.setattr(torch, "bmm", lambda a, b: (seen.add(a.dtype), product(a, b))[1])
    for least, dtype in ((0, torch.float32), (math.inf, torch.bfloat16)):
        monkeypatch.setattr(processor, "_least_rows", lambda kept, least=least: least)
        generator, seen = torch.Generator().manual_seed(3), set()
        x, y = (torch.randn(12, 6, n, generator=generator).bfloat16() for n in (layer.in_features, layer.out_features))
        x.requires_grad_(True)
        with base.speaking(adapters_of(policies)) as adapters, torch.autocast("cpu", torch.bfloat16):
            adapters.split(speakers(counts, 6))
            added = adapters.add([layer], x, y)
            found.append((added, *torch.autograd.grad(added.float().square().sum(), [x, *both])))
        assert seen == {dtype}
        assert added.dtype == torch.bfloat16
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2**-5, atol=2**-5 * float(theirs.detach().float().abs().max()))


@pytest.mark.parametrize("counts", [(2, 4, 3, 3), (3, 3, 3, 3)])
def test_a_rollouts_adapters_are_made_float32_once(
    counts: tuple[int, ...], micro_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without instructions for bfloat16, and to the bit as where every product makes them anew."""
    policies = team(micro_model, dtype="bfloat16")
    base, seen, product = policies["a"].weights.base, list[Any](), torch.bmm
    layer = base.causal.base_model.layers[0].mlp.down_proj
    monkeypatch.setattr(torch, "bmm", lambda a, b: (seen.append(b), product(a, b))[1])
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(12, n, generator=generator).bfloat16() for n in (layer.in_features, layer.out_features))
    with base.speaking(adapters_of(policies)) as adapters:
        adapters.split(speakers(counts, 1))
        monkeypatch.setattr(processor, "_least_rows", lambda kept: 0)
        anew = adapters.add([layer], x, y).detach()
        monkeypatch.setattr(processor, "_least_rows", lambda kept: 1 if kept else math.inf)
        with torch.no_grad():
            found = [adapters.add([layer], x, y.clone()) for _ in range(2)]
            monkeypatch.setattr(processor, "_least_rows", lambda kept: math.inf)
            adapters.add([layer], x, y.clone())
    assert [b.dtype for b in seen] == [torch.float32] * 3 + [torch.bfloat16]
    assert seen[1] is seen[2] is not seen[0]
    assert all(torch.equal(one, anew) for one in found)
    assert anew.dtype == torch.bfloat16 and not torch.equal(anew, y)


def test_afterwards_nothing_has_changed(micro_model: str) -> None:
    policies = team(micro_model)
    causal, ids = policies["a"].weights.base.causal, some_rows([2])[0]
    base = policies["c"].weights.base
    before = causal(input_ids=ids).logits
    with base.speaking([policies["c"].weights.adapter]):
        assert not torch.equal(causal(input_ids=ids).logits, before)
        with pytest.raises(RuntimeError), base.speaking(adapters_of(policies)), base.speaking([None]):
            raise RuntimeError
        assert not torch.equal(causal(input_ids=ids).logits, before)
    assert torch.equal(causal(input_ids=ids).logits, before)
    assert not any("forward" in module.__dict__ for module in causal.modules())


@FAMILIES
def test_an_update_is_that_of_peft(
    family: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = request.getfixturevalue(family), make_batch(6, seed=3)
    ours, theirs = team(model), team(model)

    def updated(policy: LocalLearner) -> dict[torch.Tensor, torch.Tensor]:
        return handed_over(policy, lambda: policy.update(batch, make_targets(batch, 1), make_rule(), 0))

    found = {name: updated(ours[name]) for name in "ac"}
    monkeypatch.setattr(Weights, "active", lambda self: contextlib.nullcontext(self.base.causal))
    for name in "ac":
        base = theirs[name].weights.base
        base.backend = TorchBackend(base, uses_prefix_tree=True)
        with by_peft(theirs[name]):
            wanted = updated(theirs[name])
        for mine, its in zip(ours[name].parameters, theirs[name].parameters, strict=True):
            scale = float(wanted[its].abs().max())
            torch.testing.assert_close(found[name][mine], wanted[its], rtol=1e-5, atol=1e-5 * scale)


def alike(ours: Sequence[Turn], theirs: Sequence[Turn]) -> None:
    assert [turn.action_ids for turn in ours] == [turn.action_ids for turn in theirs]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(one.logps), torch.tensor(other.logps), rtol=1e-5, atol=1e-5)
        assert (one.text, one.policy, one.finished) == (other.text, other.policy, other.finished)


@FAMILIES
@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("ends", [frozenset({EOS}), frozenset(range(0, TOKENS, 5))])
def test_turns_in_one_batch_are_those_of_each_policy_alone(
    family: str, tree: bool, ends: frozenset[int], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of different policies are the same in part; with many ends, rows leave at every step."""
    policies = team(request.getfixturevalue(family))
    for policy in policies.values():
        policy.eos = ends
        if not tree and policy.weights.base.backend.uses_prefix_tree:
            plain(policy, tree)
    prompts = ragged(4, seed=3, longest=12)
    prompts += [prompts[0] + [7, 8, 9] * 4, prompts[0] + [7, 8, 9] * 5]
    said = {
        name: make_says([*prompts * (1 + i % 3), prompts[i]], Sampling(11, temperature=0.9), name)
        for i, name in enumerate(policies)
    }
    alone = {name: LocalEngine({name: policies[name]}).generate({name: said[name]})[name] for name in policies}
    calls: list[int] = []
    whole = decode.decode
    monkeypatch.setattr("coevolve.engines.local.decode", lambda *args: (calls.append(len(args[2])), whole(*args))[1])
    together = LocalEngine(policies).generate(said)
    assert calls == [sum(map(len, said.values()))], "one batch"
    for name in policies:
        alike(together[name], alone[name])
    assert len({str([turn.action_ids for turn in together[name][:6]]) for name in policies}) == len(policies)


def test_samplings_and_chunks_are_mixed_freely(micro_model: str) -> None:
    policies = team(micro_model)
    said = {
        name: make_says(
            ragged(7, seed=i), Sampling(5 + i % 2, temperature=1.0 + i // 2, repetition_penalty=1.0 + i % 2), name
        )
        for i, name in enumerate(policies)
    }
    together = LocalEngine(policies, max_tokens=120).generate(said)
    for name in policies:
        alike(together[name], LocalEngine({name: policies[name]}).generate({name: said[name]})[name])


def test_only_equal_precisions_speak_together(micro_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = {name: PolicySpec(micro_model, **settings) for name, settings in TEAM.items()}
    specs["e"] = PolicySpec(micro_model, weights="lora", dtype="bfloat16")
    policies = build_policies(specs, reference=False, critic=False, steps=5, seed=0)
    calls: list[int] = []
    whole = decode.decode
    monkeypatch.setattr("coevolve.engines.local.decode", lambda *args: (calls.append(len(args[2])), whole(*args))[1])
    LocalEngine(policies).generate({name: make_says(ragged(3, seed=1), Sampling(4), name) for name in policies})
    assert sorted(calls) == [3, 12]


def test_another_ones_turn_on_the_base_leaves_adapters_as_they_were(micro_model: str) -> None:
    spec = PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=2, targets=["lm_head", "q_proj"]))
    policy = build_policies({"a": spec}, reference=True, critic=False, steps=1, seed=0)["a"]
    generator, ids = torch.Generator().manual_seed(0), torch.arange(6)[None]
    assert policy.reference is not None
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    with policy.weights.active() as causal:
        before = causal(input_ids=ids).logits
        with policy.reference.active(), torch.no_grad():
            bare = causal(input_ids=ids).logits
        after = causal(input_ids=ids).logits
        grads = torch.autograd.grad(after.square().sum(), policy.parameters)
    assert torch.equal(before, after)
    assert not torch.allclose(bare, after, atol=1e-3)
    assert all(grad.abs().max() > 0 for grad in grads)


def test_adapters_on_the_head_speak_alone(micro_model: str) -> None:
    spec = PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=3, targets=["lm_head", "q_proj"]))
    policies = build_policies({"a": spec, "b": spec}, reference=False, critic=False, steps=5, seed=0)
    assert not policies["a"].weights.base.groupable()
    said = {name: make_says(ragged(5, seed=1), Sampling(4), name) for name in policies}
    together = LocalEngine(policies).generate(said)
    for name in policies:
        alike(together[name], LocalEngine({name: policies[name]}).generate({name: said[name]})[name])


@pytest.mark.parametrize("seed", range(30))
def test_closing_ranks(seed: int) -> None:
    rng = random.Random(seed)
    speaker_B = sorted(rng.choices(range(rng.randint(1, 4)), k=rng.randint(1, 24)))
    done = [rng.random() < 0.4 for _ in speaker_B]
    alive = [b for b, gone in enumerate(done) if not gone]
    kept = min(len(done), -(-len(alive) // 4) * 4)
    order, holes = _closed(done, speaker_B, kept)
    assert len(order) == len(set(order)) == kept and set(alive) <= set(order)
    assert [speaker_B[b] for b in order] == sorted(speaker_B[b] for b in order)
    assert holes == [b for b in range(kept) if order[b] != b]


def test_kinds_share_nothing_and_come_one_by_one() -> None:
    rows = [np.array(row) for row in ([*range(20), 5], [*range(20), 6], [*range(20), 5], [*range(20), 7, 8])]
    grown = forest.grow(rows, [0, 0, 1, 1])
    assert len(grown.ids_N) == 2 * 20 + 1 + 1 + 1 + 2
    assert grown.kind_N.tolist() == sorted(grown.kind_N.tolist())
    for row, leaf, kind in zip(rows, grown.leaf_B, (0, 0, 1, 1), strict=True):
        assert grown.ids_N[leaf.path].tolist() == row.tolist()
        assert set(grown.kind_N[leaf.path]) == {kind}
