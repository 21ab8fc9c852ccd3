"""The same turns, annotations and updates on a GPU as on the CPU, up to float rounding. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policy_cases import Build, make_batch, make_rule, make_says, make_targets, ragged
from torch.nn.attention import SDPBackend, sdpa_kernel

from coevolve.compute import prefix_tree
from coevolve.compute.attention import FlashAttention, PathAttention, masked
from coevolve.compute.logprobs import lm_head
from coevolve.engines.local import LocalEngine
from coevolve.types import Sampling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_the_same_turns(build_policy: Build) -> None:
    says = make_says(ragged(40, seed=1), Sampling(16))
    cpu, gpu = (
        LocalEngine({"a": build_policy(device=device)}).generate({"a": says})["a"] for device in ("cpu", "cuda")
    )
    same = [a.action_ids == b.action_ids for a, b in zip(cpu, gpu, strict=True)]
    assert sum(same) >= 38  # a uniform number may fall between two devices' roundings
    for a, b, equal in zip(cpu, gpu, same, strict=True):
        if equal:
            torch.testing.assert_close(torch.tensor(a.logps), torch.tensor(b.logps), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("weights", ["full", "lora"])
def test_the_same_annotations_and_gradient_norm(weights: str, build_policy: Build) -> None:
    batch = make_batch(12, seed=2)
    policies = [
        build_policy(device=d, weights=weights, reference=True, critic=True, learning_rate=1e-2)
        for d in ("cpu", "cuda")
    ]
    for step in range(2):
        cpu, gpu = (p.update(p.describe(batch), make_targets(batch, step), make_rule(), step) for p in policies)
        assert gpu["grad_norm"] == pytest.approx(cpu["grad_norm"], rel=1e-2)
    seen, seen_gpu = (p.describe(batch) for p in policies)
    for name in ("kl_BT", "value_BT", "logp_ref_BT"):
        assert getattr(seen_gpu, name).device.type == "cpu"
        torch.testing.assert_close(getattr(seen, name), getattr(seen_gpu, name), rtol=2e-2, atol=2e-2)


def test_a_base_in_4_bits_on_the_gpu(build_policy: Build) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes (coevolve[quant])")
    batch = make_batch(12, seed=2)
    cpu, gpu = (
        build_policy(device=d, weights="lora", load_in_4bit=True, reference=True, critic=True, learning_rate=1e-2)
        for d in ("cpu", "cuda")
    )
    for step in range(2):
        norms = [
            p.update(p.describe(batch), make_targets(batch, step), make_rule(), step)["grad_norm"] for p in (cpu, gpu)
        ]
        assert norms[1] == pytest.approx(norms[0], rel=5e-2)
    turns = LocalEngine({"a": gpu}).generate({"a": make_says(ragged(20, seed=3), Sampling(8))})["a"]
    assert all(turn.logps for turn in turns)
    assert gpu.describe(batch).kl_BT.sum() > 0


def test_bfloat16_on_the_gpu(build_policy: Build) -> None:
    policy = build_policy(device="cuda", dtype="bfloat16", reference=True, critic=True)
    turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(20, seed=3), Sampling(8, top_k=5))})["a"]
    assert all(turn.logps for turn in turns)
    batch = make_batch(6, seed=4)
    assert policy.describe(batch).kl_BT.abs().max() == 0
    policy.update(policy.describe(batch), make_targets(batch, 5), make_rule(), 0)


def test_logits_are_float32_sums_of_bfloat16() -> None:
    torch.manual_seed(0)
    layer, hidden_NW = torch.nn.Linear(64, 300).cuda(), 3 * torch.randn(50, 64).cuda()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        found_NV = lm_head(layer, torch.bfloat16)(hidden_NW)
    wanted_NV = hidden_NW.bfloat16().double() @ layer.weight.bfloat16().double().t() + layer.bias.double()
    torch.testing.assert_close(found_NV.double(), wanted_NV, rtol=1e-5, atol=1e-5)


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


def test_a_model_on_a_gpu_says_which_attention_it_has(build_policy: Build) -> None:
    about = build_policy(device="cuda", dtype="bfloat16").about
    print(about)
    assert ("FlashAttention in 16 bits" in about) is (torch.cuda.get_device_capability() >= (8, 0))
