"""What a GPU computes is what the CPU does, up to float rounding: turns, annotations, updates, several cards, memory.

Where there is no GPU, the CPU takes its place in every test that needs none of its kernels, so that what is left for a
machine with one has run: always PyTorch's backend, as on GPUs, beside transformers one row at a time.
"""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_bytes import peak
from micro import character_tokenizer
from policy_cases import (
    Build,
    batch_of,
    handed_over,
    make_batch,
    make_rule,
    make_says,
    make_targets,
    ragged,
    shaken,
    turns_to_batch,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from toy import toy
from transformers import Qwen2Config, Qwen2ForCausalLM

from coevolve.compute import prefix_tree
from coevolve.compute.attention import FlashAttention, PathAttention, masked
from coevolve.compute.logprobs import lm_head
from coevolve.engines.local import LocalEngine
from coevolve.learners import cost, fsdp
from coevolve.learners.build import build_policies
from coevolve.learners.gate import BOUNDS
from coevolve.learners.sizes import shape_of, weightless
from coevolve.models.spec import PolicySpec
from coevolve.runtime.processor import multiplied_in
from coevolve.types import Batch, Metrics, Sampling, Turn

ONE = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ONE)])
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
each_kind = pytest.mark.parametrize("weights", ["full", "lora"])

PLAIN = {"device": "cpu", "compute": "reference"}
LEARNS: dict[str, Any] = {"compute": "torch", "learning_rate": 1e-2}


SPAWNING = multiprocessing.get_context("spawn")
"""Not the tests' processes that are forked: CUDA does not survive a fork."""


def even(batch: Batch) -> torch.Tensor:
    return batch.mask_BT / batch.mask_BT.sum()


def learnt(policy: Any, batch: Batch, step: int) -> Metrics:
    """The metrics of an update, which learns from the batch as it describes it."""
    rule = make_rule(loss_aggregation=even)
    found: Metrics = policy.update(policy.describe(batch), make_targets(batch, step), rule, step)
    return found


def check_alike(found: list[Turn], wanted: list[Turn]) -> None:
    """All turns but a tenth have the same tokens, as a number drawn may fall between two devices' roundings; and
    these have nearly the same log-probabilities."""
    same = [(a, b) for a, b in zip(found, wanted, strict=True) if a.action_ids == b.action_ids]
    assert len(same) >= 0.9 * len(wanted)
    for a, b in same:
        torch.testing.assert_close(torch.tensor(a.logps), torch.tensor(b.logps), rtol=1e-3, atol=1e-3)


@each_device
def test_the_same_turns(device: str, build_policy: Build) -> None:
    says = make_says(ragged(40, seed=1), Sampling(16))
    plain, policy = build_policy(**PLAIN), build_policy(device=device, compute="torch")
    wanted, found = (LocalEngine({"a": one}).generate({"a": says})["a"] for one in (plain, policy))
    check_alike(found, wanted)


@each_device
@each_kind
def test_the_same_annotations_and_gradient_norm(weights: str, device: str, build_policy: Build) -> None:
    batch = make_batch(12, seed=2)
    plain, policy = (
        build_policy(**how, weights=weights, reference=True, critic=True, learning_rate=1e-2)
        for how in (PLAIN, {"device": device, "compute": "torch"})
    )
    for step in range(2):
        norm = learnt(plain, batch, step)["grad_norm"]
        assert learnt(policy, batch, step)["grad_norm"] == pytest.approx(norm, rel=1e-2)
    wanted, found = plain.describe(batch), policy.describe(batch)
    for name in ("kl_BT", "value_BT", "logp_ref_BT"):
        assert getattr(found, name).device.type == "cpu"
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=2e-2, atol=2e-2)


@each_device
@each_dtype
@each_kind
def test_turns_after_an_update_are_sampled_by_its_weights(
    weights: str, dtype: str, device: str, build_policy: Build
) -> None:
    """And not by copies from before, in bfloat16 or of adapters: those would be several bounds of the gate away."""
    policy = build_policy(device=device, weights=weights, dtype=dtype, **LEARNS)
    engine, asked = LocalEngine({"a": policy}), {"a": make_says(ragged(20, seed=5), Sampling(12))}
    for step in range(3):
        batch = turns_to_batch(engine.generate(asked)["a"])
        drift = learnt(policy, batch, step)["drift"]
        print(step, f"drift {drift:.1e}")
        assert drift < BOUNDS[dtype]
        moved_BT = (policy.logps(batch) - batch.logp_BT).abs()
        assert moved_BT[batch.mask_BT].mean() > 2 * BOUNDS[dtype]
        engine.publish([policy.published(step + 1)])


@each_device
def test_two_adapters_in_one_batch_as_rows_leave(device: str, micro_model: str) -> None:
    """Each says what it would alone, and what it says on the CPU; each learns from its own turns."""
    teams = []
    for how in (PLAIN, {"device": device, "compute": "torch"}):
        spec = PolicySpec(micro_model, weights="lora", learning_rate=1e-2, **how)  # type: ignore[arg-type]
        team = build_policies(dict.fromkeys("ab", spec), reference=False, critic=False, steps=9, seed=0, workers=False)
        teams.append({name: shaken(policy, seed) for seed, (name, policy) in enumerate(team.items())})
    asked = {name: make_says(ragged(n, seed=n), Sampling(24), policy=name) for name, n in (("a", 20), ("b", 14))}
    wanted, found = (LocalEngine(team).generate(asked) for team in teams)
    assert [turn.action_ids for turn in found["a"][:14]] != [turn.action_ids for turn in found["b"]]
    for name, policy in teams[1].items():
        assert len({len(turn.action_ids) for turn in found[name]}) > 2
        check_alike(found[name], wanted[name])
        check_alike(LocalEngine({name: policy}).generate({name: asked[name]})[name], found[name])
        assert learnt(policy, turns_to_batch(found[name]), 0)["drift"] < BOUNDS["float32"]


@each_kind
@pytest.mark.parametrize("pair", [("cpu", "cpu"), pytest.param(("cuda:0", "cuda:1"), marks=TWO)])
def test_a_team_on_two_cards(pair: tuple[str, str], weights: Any, micro_model: str) -> None:
    """Both sample and learn at the same time."""

    def trained(*devices: str, **how: Any) -> Any:
        specs = {
            name: PolicySpec(micro_model, weights=weights, device=device, learning_rate=1e-2, **how)
            for name, device in zip(("ann", "bob"), devices, strict=True)
        }
        return toy(micro_model, policies=specs, workers=False)

    plain, team = trained("cpu", "cpu", compute="reference"), trained(*pair, compute="torch")
    assert [str(team.policies[name].device) for name in ("ann", "bob")] == list(pair)
    for step in range(3):
        line = team.step(step)
        assert all(line[f"agents/{name}/drift"] < BOUNDS["float32"] for name in ("ann", "bob"))
        if step == 0:
            plain.step(0)
            found, wanted = ([t for e in one.episodes for t in e.turns] for one in (team, plain))
            check_alike(found, wanted)
    plain.close()
    team.close()


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO)])
def test_two_ranks_learn_what_one_process_does(
    device: str, weights: Any, micro_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a card each, and NCCL between them."""
    if device == "cuda":
        monkeypatch.setattr(multiprocessing, "get_context", lambda method: SPAWNING)
    how: dict[str, Any] = {"reference": True, "critic": True, "steps": 9, "seed": 0}
    settings: dict[str, Any] = {"weights": weights, "compute": "torch", "learning_rate": 1e-3, "micro_tokens": 60}
    one = build_policies({"a": PolicySpec(micro_model, device="cpu", **settings)}, **how)["a"]
    two: Any = fsdp("a", PolicySpec(micro_model, device=device, **settings), **how, ranks=2, deadline=240.0)
    batch = make_batch(12, seed=2)
    try:
        for step in range(2):
            norm = learnt(one, batch, step)["grad_norm"]
            assert learnt(two, batch, step)["grad_norm"] == pytest.approx(norm, rel=1e-2)
        two.save(tmp_path)
        wanted_BT = one.logps(batch)
        torch.testing.assert_close(two.logps(batch), wanted_BT, rtol=1e-2, atol=1e-2)
        one.load(tmp_path, two.training_state())
        torch.testing.assert_close(one.logps(batch), wanted_BT, rtol=1e-2, atol=1e-2)
    finally:
        two.close()


WORDS = 151_936
"""The vocabulary of Qwen2."""


def saved(config: Qwen2Config, folder: Path, seed: int) -> str:
    """A model with random weights, saved."""
    torch.manual_seed(seed)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def wordy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of one layer with a real vocabulary."""
    config = Qwen2Config(
        vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=1, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    return saved(config, tmp_path_factory.mktemp("wordy"), seed=3)


@each_device
@each_dtype
def test_a_vocabulary_of_152_thousand(dtype: str, device: str, wordy: str, build_policy: Build) -> None:
    """Turns, log-probabilities and gradients; on a GPU of more tokens than its output layer takes at once."""
    rng = random.Random(7)

    def some(rows: int, tokens: int) -> list[list[int]]:
        return [[rng.randrange(WORDS) for _ in range(tokens)] for _ in range(rows)]

    rows = 20 if device == "cpu" else 150
    asked, batch = {"a": make_says(some(8, 5), Sampling(6))}, batch_of(some(rows, 5), some(rows, 16), seed=8)
    turns, scores, steps = [], [], []
    for how in (PLAIN, {"device": device, "compute": "torch"}):
        policy = build_policy(wordy, dtype=dtype, micro_tokens=1 << 13, **how)
        turns.append(LocalEngine({"a": policy}).generate(asked)["a"])
        scores.append(policy.logps(batch))
        given = handed_over(policy, lambda policy=policy: learnt(policy, batch, 0))  # type: ignore[misc]
        steps.append([given[p].cpu() for p in policy.parameters])
        assert max(max(turn.action_ids) for turn in turns[-1]) > WORDS // 2
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == "float32" else {"rtol": 5e-2, "atol": 5e-2}
    if dtype == "float32":
        check_alike(turns[1], turns[0])
    torch.testing.assert_close(scores[1], scores[0], **close)
    for found, wanted in zip(*reversed(steps), strict=True):
        assert (found - wanted).norm() <= close["rtol"] * wanted.norm()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose activations outweigh its weights."""
    config = Qwen2Config(
        vocab_size=64, hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return saved(config, tmp_path_factory.mktemp("wide"), seed=4)


@each_device
@each_dtype
@each_kind
@pytest.mark.parametrize("again", [False, True])
def test_an_update_takes_the_memory_of_the_dry_run(
    again: bool, weights: Any, dtype: Any, device: str, wide: str, build_policy: Build
) -> None:
    """Or a fifth more, however many micro-batches it has; the second one, so that moments are there. The dry run leaves
    out the layer that is computed again, in float32 where the processor has no instructions for bfloat16: logits are
    never there at the same time, and mostly larger."""
    settings: dict[str, Any] = {
        "weights": weights, "dtype": dtype, "device": device, "compute": "torch", "micro_tokens": 512,
        "gradient_checkpointing": again,
    }  # fmt: skip
    policy, spec = build_policy(wide, **settings), PolicySpec(wide, **settings)
    trained = sum(p.numel() for p in policy.parameters)
    shape = shape_of(weightless(wide))
    multiplied = multiplied_in(getattr(torch, dtype), torch.device(device), spec.micro_tokens)
    layer = cost.ACTIVATIONS["float32" if multiplied == torch.float32 else dtype] * shape.hidden * spec.micro_tokens
    planned = 4 * trained + sum(cost.learning(shape, spec).values()) + layer * again
    found = []
    for rows in (10, 20):
        rng = random.Random(rows)
        prompts, actions = ([[rng.randrange(60) for _ in range(n)] for _ in range(rows)] for n in (90, 10))
        batch = batch_of(prompts, actions, seed=rows)
        learnt(policy, batch, 0)
        found.append(peak(device, lambda batch=batch: learnt(policy, batch, 1)))  # type: ignore[misc]
    print(f"{found[0] / 2**20:.1f} and {found[1] / 2**20:.1f} MiB, planned {planned / 2**20:.1f}")
    assert found[1] < 1.05 * found[0]
    assert found[0] < 1.2 * planned


@each_device
def test_a_base_in_4_bits(device: str, build_policy: Build) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes (coevolve[quant])")
    batch = make_batch(12, seed=2)
    plain, policy = (
        build_policy(device=d, weights="lora", load_in_4bit=True, reference=True, critic=True, learning_rate=1e-2)
        for d in ("cpu", device)
    )
    for step in range(2):
        norms = [learnt(p, batch, step)["grad_norm"] for p in (plain, policy)]
        assert norms[1] == pytest.approx(norms[0], rel=5e-2)
    turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(20, seed=3), Sampling(8))})["a"]
    assert all(turn.logps for turn in turns)
    assert policy.describe(batch).kl_BT.sum() > 0


@each_device
def test_bfloat16(device: str, build_policy: Build) -> None:
    policy = build_policy(device=device, compute="torch", dtype="bfloat16", reference=True, critic=True)
    turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(20, seed=3), Sampling(8, top_k=5))})["a"]
    assert all(turn.logps for turn in turns)
    batch = make_batch(6, seed=4)
    assert policy.describe(batch).kl_BT.abs().max() == 0
    learnt(policy, batch, 0)


@each_device
def test_logits_are_float32_sums_of_bfloat16(device: str) -> None:
    torch.manual_seed(0)
    layer, hidden_NW = torch.nn.Linear(64, 300).to(device), 3 * torch.randn(50, 64).to(device)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        found_NV = lm_head(layer, torch.bfloat16)(hidden_NW)
    wanted_NV = hidden_NW.bfloat16().double() @ layer.weight.bfloat16().double().t() + layer.bias.double()
    torch.testing.assert_close(found_NV.double(), wanted_NV, rtol=1e-5, atol=1e-5)


@ONE
def test_attention_over_a_tree_keeps_no_scores() -> None:
    """With several query heads for a key head; no other kernel is allowed."""
    torch.manual_seed(0)
    heads = ((6, 40), (2, 100), (2, 100))
    query, key, value = (torch.randn(3, h, n, 64, device="cuda", requires_grad=True) for h, n in heads)
    sees_M1QP = torch.ones(3, 1, 40, 100, dtype=torch.bool, device="cuda").tril(60)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        out = masked(query, key, value, sees_M1QP, 0.125, grouped=False)
        out.square().sum().backward()
    found = [x.cpu() for x in (out.detach(), *(x.grad for x in (query, key, value)))]  # type: ignore[union-attr]
    cpu = [x.detach().cpu().requires_grad_() for x in (query, key, value)]
    wanted = masked(*cpu, sees_M1QP.cpu(), 0.125, grouped=True)
    wanted.square().sum().backward()
    for a, b in zip(found, [wanted.detach(), *(x.grad for x in cpu)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@ONE
@pytest.mark.parametrize("keys", [2, 6])
def test_flash_attention_is_that_with_a_mask(keys: int) -> None:
    """And the gradients, of a tree whose paths begin before their segments."""
    device, common = torch.device("cuda"), list(range(40))
    rows = [np.array([*common, *range(7, 7 + n)]) for n in (30, 2, 11)]
    grown, found = prefix_tree.grow(rows), []
    torch.manual_seed(0)
    flash, other = (kind(grown, device) for kind in (FlashAttention, PathAttention))
    given = [torch.randn(1, h, len(flash.ids_N), 64, device=device, dtype=torch.bfloat16) for h in (6, keys, keys)]
    for attention in (flash, other):
        leaves = [x.clone().requires_grad_() for x in given]
        out = attention.attend(0, leaves[0], leaves[1], leaves[2], 0.125)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)


@ONE
def test_a_model_on_a_gpu_says_which_attention_it_has(build_policy: Build) -> None:
    about = build_policy(device="cuda", dtype="bfloat16").about
    print(about)
    assert ("FlashAttention in 16 bits" in about) is (torch.cuda.get_device_capability() >= (8, 0))
