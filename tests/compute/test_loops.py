"""The compiled loops against what they stand for, written plainly."""

from __future__ import annotations

import importlib.machinery
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
import weakref
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from micro import VOCABULARY, save_micro
from policy_cases import Build, make_says, ragged, shaken, turns_to_batch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM

from coevolve.compute import torch_backend
from coevolve.compute.cpu.arrays import either
from coevolve.compute.prefix_tree import grow
from coevolve.engines.local import LocalEngine
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.runtime import processor
from coevolve.types import Sampling

attention: Any = pytest.importorskip("coevolve.compute.cpu.loops.attention")
between: Any = pytest.importorskip("coevolve.compute.cpu.loops.between")
compiling: Any = pytest.importorskip("coevolve.compute.cpu.loops.loop")
in_panels: Any = pytest.importorskip("coevolve.compute.cpu.loops.product")
by_loops: Any = pytest.importorskip("coevolve.compute.cpu.backend")
cached: Any = pytest.importorskip("coevolve.compute.cpu.attention")
products: Any = pytest.importorskip("coevolve.compute.cpu.products")
shares: Any = pytest.importorskip("coevolve.compute.cpu.threads")
Panels, panels = products.Panels, products.panels
TreeAttention: Any = pytest.importorskip("coevolve.compute.cpu.attention").TreeAttention


def arrays(*tensors: Tensor) -> list[Any]:
    return [either(x) for x in tensors]


def test_numbers_in_bfloat16_are_those_of_pytorch() -> None:
    """Of two equally near ones the even one, beyond the largest none, and what is no number stays none."""
    torch.manual_seed(0)
    special = torch.tensor(
        [math.nan, math.inf, -math.inf, 0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38, 1e-40]
    )
    payload = torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    x = torch.cat((special, payload, torch.randn(100_000) * torch.randn(100_000).exp()))
    for numbers in (x, x.flip(0)):  # by vectors, and one by one what is left over
        right = numbers.to(torch.bfloat16)
        out, back = torch.empty_like(right), torch.empty_like(numbers)
        between.copied(*arrays(numbers, out))
        torch.testing.assert_close(out, right, rtol=0, atol=0, equal_nan=True)
        between.copied(*arrays(out, back))
        torch.testing.assert_close(back, right.float(), rtol=0, atol=0, equal_nan=True)


def turned(x_D: Tensor, cos_D: Tensor, sin_D: Tensor) -> Tensor:
    """As transformers' models do it."""
    half = len(x_D) // 2
    if len(x_D) % 2:  # one number stays
        return torch.cat((turned(x_D[:-1], cos_D[:-1], sin_D[:-1]), x_D[-1:]))
    return x_D * cos_D + torch.cat((-x_D[half:], x_D[:half])) * sin_D


SHAPES = [(5, 5, 64), (6, 2, 16), (4, 1, 6), (2, 2, 5), (3, 1, 85), (2, 1, 128)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "keys", "size"), SHAPES)
def test_attention_is_that_of_one_query_at_a_time(heads: int, keys: int, size: int, dtype: torch.dtype) -> None:
    """Five rows of three ragged prompts, twenty tokens one after the other."""
    torch.manual_seed(0)
    prompt = torch.randn(3, keys, 7, 2 * size)
    length_E, prompt_B = np.array([7, 1, 4]), np.array([0, 2, 2, 1, 0])
    own = torch.full((5, keys, 20, 2 * size), math.nan, dtype=dtype)
    seen = [list(prompt[e, :, : length_E[e]].double().transpose(0, 1)) for e in prompt_B]
    for t in range(20):
        heads_BXD, cos_BD, sin_BD = (
            torch.randn(5, heads + 2 * keys, size).to(dtype),
            torch.randn(5, size),
            torch.randn(5, size),
        )
        out = torch.empty(5, heads, size)
        attention.attend(
            *arrays(heads_BXD, cos_BD, sin_BD, prompt), length_E, prompt_B, *arrays(own), t, 0.3, out.numpy()
        )
        for b, x_XD in enumerate(heads_BXD.double()):
            turn = (cos_BD[b].double(), sin_BD[b].double())
            key_KD = torch.stack([turned(x, *turn) for x in x_XD[heads : heads + keys]])
            seen[b].append(torch.cat((key_KD, x_XD[heads + keys :]), -1))
            if dtype == torch.bfloat16:  # the key is remembered as one of the two nearest
                torch.testing.assert_close(own[b, :, t].double(), seen[b][-1], rtol=2**-8, atol=0)
                seen[b][-1] = own[b, :, t].double()
            for h in range(heads):
                kv_TD = torch.stack([token[h * keys // heads] for token in seen[b]])
                share_T = (0.3 * kv_TD[:, :size] @ turned(x_XD[h], *turn)).softmax(0)
                torch.testing.assert_close(out[b, h].double(), share_T @ kv_TD[:, size:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "keys", "size"), [(5, 5, 64), (6, 2, 16), (4, 1, 6), (3, 1, 85)])
def test_attention_over_a_tree_is_that_of_each_token_over_what_it_sees(heads: int, keys: int, size: int) -> None:
    """A path of three segments, one of 150 tokens, one of a single token, two roots; and the filling tokens."""
    torch.manual_seed(0)
    long, first, other = np.arange(150), np.arange(150, 190), np.arange(200, 210)
    rows = [np.concatenate((long, first, [n], long[:n])) for n in (1, 5, 40)]
    tree = grow([*rows, long, np.append(long, 7), other])
    packed = TreeAttention(tree)
    assert len(packed.segments[0]) == 7
    n = len(packed.ids_N)
    sees_NN = torch.zeros(n, n, dtype=torch.bool)
    for leaf in tree.leaf_B:
        for place, token in enumerate(leaf.path):
            sees_NN[token, leaf.path[: place + 1]] = True
    real_N = sees_NN.any(1)
    q, k, v = (torch.randn(1, h, n, size, requires_grad=True) for h in (heads, keys, keys))
    found = packed.attend(0, q, k, v, 0.3)[0]
    q_, k_, v_ = (x[0].detach().double().requires_grad_() for x in (q, k, v))
    score = 0.3 * q_ @ k_.repeat_interleave(heads // keys, 0).transpose(1, 2)
    share = score.masked_fill(~sees_NN, -math.inf)[:, real_N].softmax(-1)
    right = (share @ v_.repeat_interleave(heads // keys, 0)).transpose(0, 1)
    torch.testing.assert_close(found[real_N].double(), right, rtol=1e-5, atol=1e-5)
    assert (found[~real_N] == 0).all()
    grad = torch.randn(n, heads, size)
    ours = torch.autograd.grad(found, (q, k, v), grad)
    theirs = torch.autograd.grad(right, (q_, k_, v_), grad[real_N].double())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a[0].double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "keys"), [(5, 5), (6, 3), (6, 2), (4, 1)])
def test_threads_share_the_heads_of_attention(heads: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit what one computes, gradients too; few numbers are one's alone."""
    packed, found, parts = TreeAttention(grow([np.arange(90), np.arange(70)])), list[list[Tensor]](), list[int]()
    torch.manual_seed(0)
    given = [torch.randn(1, h, len(packed.ids_N), 16, requires_grad=True) for h in (heads, keys, keys)]
    run = shares.run
    monkeypatch.setattr(shares, "run", lambda of: (parts.append(len(of)), run(of))[1])
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(shares, "product_threads", lambda threads=threads: threads)
        monkeypatch.setattr(shares, "SHARE", 1)
        out = packed.attend(0, *given, 0.3)
        found.append([out, *torch.autograd.grad(out.square().sum(), given)])
        assert parts[-2:] == 2 * [min(threads, keys)]
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))
    monkeypatch.setattr(shares, "SHARE", given[0].numel())
    packed.attend(0, *given, 0.3)
    assert parts[-1] == 1


def test_a_token_has_no_say_before_it_is_there_however_large_its_key() -> None:
    torch.manual_seed(0)
    packed = TreeAttention(grow([np.arange(20)]))
    q, k, v = torch.randn(3, 1, 2, len(packed.ids_N), 16)
    loud, found = k.clone(), list[list[Tensor]]()
    loud[:, :, 12] = 1000 * q[:, :, :12].mean(2)
    for keys in (k, loud):
        given = [x.clone().requires_grad_() for x in (q, keys, v)]
        out = packed.attend(0, *given, 1.0)[0, :12]
        found.append([out, *(x[0, :, :12] for x in torch.autograd.grad(out.square().sum(), given))])
    for before, after in zip(*found, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("tokens", [3, 12])
@pytest.mark.parametrize("weights", ["full", "lora"])
def test_in_bfloat16_scoring_sees_the_keys_that_sampling_remembered(
    weights: Literal["full", "lora"], tokens: int, build_policy: Build
) -> None:
    """Rounded ones: with others, what sampling and scoring find is some fifty times as far apart."""
    policy = shaken(build_policy(dtype="bfloat16", weights=weights, compute="cpu"))
    with torch.no_grad():
        for layer in policy.weights.base.causal.base_model.layers:
            key = getattr(layer.self_attn.k_proj, "base_layer", layer.self_attn.k_proj)
            key.weight.mul_(10)  # so that attention looks at something
    turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(9, seed=3) * 3, Sampling(tokens))})["a"]
    batch = turns_to_batch(turns)
    off = ((policy.outputs(batch).logp_BT - batch.logp_BT) * batch.mask_BT).abs().sum() / batch.mask_BT.sum()
    assert batch.mask_BT.sum() > 27 and off < 1e-4, off


@torch.no_grad()
def apart(policies: dict[str, LocalLearner], count: int) -> list[float]:
    """How far log-probabilities at scoring are from those at sampling, per token, of policies that sample together."""
    says = {name: make_says(ragged(count + n, seed=n) * 3, Sampling(12)) for n, name in enumerate(policies)}
    found = []
    for name, turns in LocalEngine(policies).generate(says).items():
        batch = turns_to_batch(turns)
        off_BT = (policies[name].outputs(batch).logp_BT - batch.logp_BT) * batch.mask_BT
        found.append(float(off_BT.abs().sum() / batch.mask_BT.sum()))
    return found


def test_in_bfloat16_scoring_rounds_biases_as_sampling_does(tmp_path: Path) -> None:
    config = Qwen2Config(
        vocab_size=len(VOCABULARY), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    folder = save_micro(Qwen2ForCausalLM(config), tmp_path)
    policies = build_policies(
        {"a": PolicySpec(folder, dtype="bfloat16", compute="cpu")}, reference=False, critic=False, steps=1, seed=0
    )
    torch.manual_seed(0)
    for name, parameter in policies["a"].weights.base.causal.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter, std=0.5)
    assert apart(policies, 9)[0] < 1e-4


def test_in_bfloat16_teams_of_adapters_are_scored_as_they_sample(micro_model: str) -> None:
    """Each has another number of rows, so that runs are of different lengths."""
    specs = {
        name: PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=rank), dtype="bfloat16", compute="cpu")
        for name, rank in (("a", 3), ("b", 16), ("c", 5))
    }
    policies = build_policies(specs, reference=False, critic=False, steps=1, seed=0)
    torch.manual_seed(0)
    for policy in policies.values():
        for parameter in policy.parameters:
            nn.init.normal_(parameter, std=0.1)
    assert max(apart(policies, 4)) < 1e-3


def test_norm_and_gate_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    x_NW, y_NW, weight_W = 3 * torch.randn(5, 37), torch.randn(5, 37), torch.randn(37)
    sum_NW, scale_N, out_NW = torch.empty(5, 37), torch.empty(5), torch.empty(5, 37)
    between.added(*arrays(x_NW, y_NW, weight_W), 1e-3, *arrays(sum_NW, scale_N, out_NW))
    assert torch.equal(sum_NW, x_NW + y_NW)
    torch.testing.assert_close(out_NW, functional.rms_norm(sum_NW, (37,), weight_W, 1e-3), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(scale_N, (sum_NW.square().mean(1) + 1e-3).rsqrt())
    both_NI = torch.cat((torch.linspace(-300, 300, 77).expand(5, -1), torch.randn(5, 77)), 1).contiguous()
    gate_NI, up_NI, out_NI = *both_NI.chunk(2, 1), torch.empty(5, 77)
    between.gated(*arrays(both_NI, out_NI))
    torch.testing.assert_close(out_NI, functional.silu(gate_NI) * up_NI, rtol=1e-6, atol=1e-33)


PRODUCTS = [((71,), 46), ((64, 32, 7), 18), ((5, 40, 64), 46), ((96,), 2), ((71,), 64), ((96, 64), 96)]
"""Outputs of layers side by side, and inputs: no multiples of what processors do at once, or multiples."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), PRODUCTS)
def test_products_are_those_of_pytorch(outputs: tuple[int, ...], inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(inputs, count, bias=n % 2 == 0) for n, count in enumerate(outputs)]
    product = Panels(layers, dtype)
    for rows in (1, 3, 4, 8, 12, 13, 16, 28, 61, 300):
        x = torch.randn(rows, 1, inputs).to(dtype)
        exact = torch.cat(
            [functional.linear(x.double(), layer.weight.to(dtype).double()) for layer in layers], -1
        ) + torch.cat([torch.zeros(len(x.weight)) if x.bias is None else x.bias.to(dtype).float() for x in layers])
        found = product(x)
        assert found.dtype == dtype
        near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-8, "atol": 1e-5}
        torch.testing.assert_close(found.double(), exact, **near)
        assert torch.equal(found[-1], product(x[-1])), "the rows beside it have no say"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), PRODUCTS)
def test_threads_share_a_products_outputs(
    outputs: tuple[int, ...], inputs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit what one computes; a small product is one's alone."""
    product, alone, parts = Panels([nn.Linear(inputs, n) for n in outputs], dtype), [], list[range]()
    shared, panels = sum(outputs), -(-sum(outputs) // in_panels.WIDTH)
    for rows in (1, 8, 13):
        alone.append((x := torch.randn(rows, inputs).to(dtype), product(x)))
    part = Panels._part
    monkeypatch.setattr(Panels, "_part", lambda self, x, out, of: (parts.append(of), part(self, x, out, of))[1])
    for threads in (2, 3, 8):
        monkeypatch.setattr(shares, "product_threads", lambda threads=threads: threads)
        monkeypatch.setattr(shares, "SHARE", 1)
        for x, expected in alone:
            parts.clear()
            assert torch.equal(product(x), expected)
            assert sorted(o for part in parts for o in part) == list(range(shared))
            assert 1 < len(parts) <= threads or panels == 1 == len(parts)
    monkeypatch.setattr(shares, "SHARE", len(product.panels_L))
    parts.clear()
    product(alone[0][0])
    assert parts == [range(shared)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent's are not there, and who waited for them would wait for ever."""
    monkeypatch.setattr(shares, "product_threads", lambda: 2)
    monkeypatch.setattr(shares, "SHARE", 1)
    product, x = Panels([nn.Linear(8, 4 * in_panels.WIDTH)], torch.float32), torch.ones(1, 8)
    expected = product(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(int(not torch.equal(product(x), expected)))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("part", [0, 1])
def test_an_error_in_a_part_is_raised_when_the_others_have_ended(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they write to may be read or written by whoever goes on. The last of three parts ends last."""
    monkeypatch.setattr(shares, "product_threads", lambda: 3)
    monkeypatch.setattr(shares, "SHARE", 1)
    ended = []

    def fails(self: Panels, x_NI: Any, out_NO: Any, outputs: range) -> None:
        if outputs.start == part * in_panels.WIDTH:
            raise RuntimeError("broken")
        time.sleep(0.1 * outputs.start / in_panels.WIDTH)
        ended.append(outputs)

    monkeypatch.setattr(Panels, "_part", fails)
    with pytest.raises(RuntimeError, match="broken"):
        Panels([nn.Linear(8, 3 * in_panels.WIDTH)], torch.float32)(torch.ones(1, 8))
    assert len(ended) == 2


def test_a_copy_of_weights_is_kept_where_nobody_trains_them() -> None:
    """Which are those held in bfloat16; others are copied as they are now, and what is kept goes with its layer."""
    layers, x = [nn.Linear(8, 40), nn.Linear(8, 24, bias=False)], torch.ones(1, 8)
    trained = panels(layers, torch.bfloat16)
    layers[1].weight.data += 1
    assert float(panels(layers, torch.bfloat16)(x)[0, 63]) == pytest.approx(float(trained(x)[0, 63]) + 8, rel=2**-7)
    layers[0].requires_grad_(False).weight.data = layers[0].weight.data.bfloat16()
    assert panels(layers, torch.bfloat16) is not panels(layers, torch.bfloat16), "one of them is trained"
    layers[1].weight.data = layers[1].weight.data.bfloat16()
    assert panels(layers, torch.bfloat16) is not panels(layers, torch.bfloat16), "and is so in bfloat16, too"
    layers[1].requires_grad_(False)
    kept = panels(layers, torch.bfloat16)
    assert panels(layers, torch.bfloat16) is kept
    assert panels(layers[:1], torch.bfloat16) is not kept is not panels(layers, torch.bfloat16, torch.float32)
    assert torch.equal(kept(x), Panels(layers, torch.bfloat16)(x))
    gone = weakref.ref(kept)
    del layers, kept
    assert gone() is None


def test_products_of_bfloat16_in_float32_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sums and their gradients, rounded once, under autocast as without; literally where all is exact."""
    torch.manual_seed(0)
    layer, x = nn.Linear(48, 40).bfloat16(), torch.randn(8, 40, 48).bfloat16()
    way, found = torch.randn(8, 40, 40).bfloat16(), []
    for faster in (True, False):
        monkeypatch.setattr(processor, "_least_rows", lambda kept, faster=faster: 0 if faster else math.inf)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            given = [x.clone().requires_grad_(True), *layer.parameters()]
            y = products.linear(*given)
            found.append((y, *torch.autograd.grad(y, given, way)))
        assert ("_Divided" in str(y.grad_fn)) is faster and {each.dtype for each in found[-1]} == {torch.bfloat16}
    wide, weights, slopes = x.double(), layer.weight.double(), way.double()
    exact = (
        wide @ weights.t() + layer.bias,
        slopes @ weights,
        torch.einsum("abo,abi->oi", slopes, wide),
        slopes.sum((0, 1)),
    )
    for ours, plain, true in zip(*found, exact, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=2**-8, atol=1e-5)
        torch.testing.assert_close(ours, plain, rtol=2**-6, atol=1e-2)
    monkeypatch.setattr(processor, "_least_rows", lambda kept: 256)
    y = products.linear(
        torch.full((256, 2), 3.0).bfloat16(), torch.tensor([[1.0, 2.0]]).bfloat16(), torch.tensor([0.5])
    )
    assert y.tolist() == [[9.5]] * 256
    few = products.linear(x[0].requires_grad_(True), layer.weight, None)
    assert "_Divided" not in str(few.grad_fn), "a few rows do not pay for weights in float32"


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
def test_threads_share_the_products_of_updates(wide: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of outputs that are the same for any number of threads, so numbers are, too: those of one product of
    numbers whose sums are exact."""
    monkeypatch.setattr(processor, "_least_rows", lambda kept: 0 if wide == torch.float32 else math.inf)
    monkeypatch.setattr(products, "_PIECE", 16)
    monkeypatch.setattr(shares, "SHARE", 1)
    torch.manual_seed(0)
    x = torch.randint(-4, 5, (3, 7, 24)).bfloat16().requires_grad_(True)
    weight, bias = torch.randint(-4, 5, (70, 24)).bfloat16(), torch.randint(-4, 5, (70,)).bfloat16()
    way, trained = torch.randint(-2, 3, (3, 7, 70)).bfloat16(), weight.clone().requires_grad_(True)
    parts, run = list[int](), shares.run
    monkeypatch.setattr(shares, "run", lambda of: (parts.append(len(of)), run(of))[1])
    for threads in (1, 2, 3, 8):
        parts.clear()
        monkeypatch.setattr(shares, "product_threads", lambda threads=threads: threads)
        y = products.linear(x, trained, bias)
        slope, step = torch.autograd.grad(y, [x, trained], way)
        assert torch.equal(y.detach(), (x.detach().float() @ weight.float().t() + bias.float()).bfloat16())
        assert torch.equal(slope, (way.float() @ weight.float()).bfloat16())
        assert torch.equal(step, torch.einsum("abo,abi->oi", way.float(), x.detach().float()).bfloat16())
        assert parts == [min(threads, 5), min(threads, 2), min(threads, 2)], "pieces of 70, 24 and 24 outputs"
        if wide == torch.bfloat16:
            assert torch.equal(products.times(way, weight.t()), slope) and parts[3:] == [min(threads, 2)]
            both = way.flatten(0, 1), x.detach().flatten(0, 1)  # the gradient of an output layer
            assert torch.equal(products.inner(*both), step) and parts[4:] == [min(threads, 2)]
    monkeypatch.setattr(shares, "SHARE", weight.numel())
    parts.clear()
    products.linear(x, weight, bias)
    assert parts == [1] * (wide == torch.float32), "a small product is one's alone, and in bfloat16 PyTorch's own"
    monkeypatch.setattr(shares, "SHARE", 1)
    with torch.inference_mode():
        assert torch.equal(products.linear(x, weight, bias), y)


@pytest.mark.parametrize(
    ("has", "intel", "rows"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, True, math.inf),
        ({"avx512_bf16": True}, True, 256),
        ({"avx512_bf16": True}, False, math.inf),
        ({"avx2": True}, False, 8),
        ({"architecture": "arm64", "bf16": True}, False, math.inf),
    ],
)
def test_from_how_many_rows_float32_is_faster(
    has: dict[str, Any], intel: bool, rows: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64"} | has)
    monkeypatch.setattr(processor, "intel", lambda: intel)
    least = processor._least_rows.__wrapped__
    monkeypatch.setattr(processor, "_least_rows", least)
    assert (least(False), least(True)) == (rows, 1 if rows == 8 else rows)
    for n in (7, 8, 255, 256):
        in_float32 = processor.multiplied_in(torch.bfloat16, torch.device("cpu"), n) == torch.float32
        assert in_float32 is (n >= rows)
    for dtype, device in ((torch.float32, "cpu"), (torch.float16, "cpu"), (torch.bfloat16, "cuda")):
        assert processor.multiplied_in(dtype, torch.device(device), 1024) == dtype


def test_of_a_processor_that_pytorch_does_not_know_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert processor.bfloat16_by() == "unknown"


def test_a_product_of_bfloat16_takes_pairs_only() -> None:
    """Of an odd number of inputs the last would be multiplied with what lies behind."""
    Panels([nn.Linear(7, 40)], torch.float32)
    with pytest.raises(AssertionError, match="pairs"):
        Panels([nn.Linear(7, 40)], torch.bfloat16)


@pytest.mark.parametrize("inputs", [6, 64])
def test_a_product_of_what_is_not_finite_is_not_either_and_that_of_other_rows_is(inputs: int) -> None:
    product = Panels([nn.Linear(inputs, 40)], torch.bfloat16)
    for bad in (math.nan, math.inf):
        x = torch.ones(13, inputs)
        x[5, 3] = bad
        found = product(x).isfinite()
        assert not found[5].any() and found[:5].all() and found[6:].all()


OTHER = """
import torch
from torch import nn
from coevolve.compute.cpu.products import Panels

torch.manual_seed(0)
for inputs in (46, 64):
    layer, x = nn.Linear(inputs, 71), torch.randn(13, inputs).bfloat16()
    exact = x.double() @ layer.weight.bfloat16().double().t() + layer.bias.bfloat16()
    torch.testing.assert_close(Panels([layer], torch.bfloat16)(x).double(), exact, rtol=2**-8, atol=1e-5)
"""


TOGETHER = """
import threading
import torch
from torch import nn
from torch.nn import functional
from coevolve.compute.cpu.products import Panels

torch.manual_seed(0)
torch.set_num_threads(1)
layer, x = nn.Linear(96, 160).bfloat16(), torch.randn(300, 96).bfloat16()
product, right = Panels([layer], torch.bfloat16), functional.linear(x, layer.weight, layer.bias)
ours = product(x)
torch.testing.assert_close(ours, right, rtol=2**-7, atol=1e-5)

def both():
    for rows in (300, 5, 64, 17, 256) * 40:
        assert torch.equal(product(x[:rows]), ours[:rows])
        found = functional.linear(x[:rows], layer.weight, layer.bias)
        torch.testing.assert_close(found, right[:rows], rtol=2**-7, atol=1e-5)
        done.append(rows)

done = []
threads = [threading.Thread(target=both) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(done) == 600, done
"""


def test_products_do_not_disturb_pytorchs_nor_those_of_other_threads() -> None:
    """Both shape the same registers where the processor has tiles."""
    done = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


REFUSED = """
import ctypes

class Refusing(ctypes.CDLL):
    def __getattr__(self, name):
        return (lambda *given: -1) if name == "syscall" else super().__getattr__(name)

ctypes.CDLL = Refusing
from coevolve.compute.cpu.loops.loop import TILES
assert not TILES
"""


def test_a_kernel_that_refuses_tiles_gets_none_and_code_of_its_own(tmp_path: Path) -> None:
    """Numba keeps code by what the processor has, not by what the kernel lets us use."""
    other = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", REFUSED + OTHER], env=other, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kept = [file.name for file in tmp_path.rglob("*.nbi")]
    assert kept and all(("_without_tiles" in name) == bool(compiling.TILES) for name in kept)


def test_processors_that_have_no_bfloat16_multiply_it_too(tmp_path: Path) -> None:
    other = {
        **os.environ,
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2,+fma",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", OTHER], env=other, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_hidden(bad: float) -> None:
    x_NW, zero_NW, sum_NW, scale_N, out_NW = torch.ones(2, 8), *torch.zeros(2, 2, 8), torch.empty(2), torch.empty(2, 8)
    x_NW[1, 5] = bad
    between.added(*arrays(x_NW, zero_NW, torch.ones(8)), 1e-6, *arrays(sum_NW, scale_N, out_NW))
    assert out_NW[0].isfinite().all() and out_NW[1].isnan().any()
    gated = torch.empty(2, 4)
    between.gated(*arrays(x_NW, gated))
    torch.testing.assert_close(gated, functional.silu(x_NW[:, :4]) * x_NW[:, 4:], equal_nan=True)
    heads_BXD, out_BHD = torch.ones(2, 3, 4), torch.empty(2, 1, 4)
    heads_BXD[1, 1, 2] = bad  # a key
    turn = (np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32))
    prompt, own = np.ones((1, 1, 2, 8), np.float32), np.empty((2, 1, 1, 8), np.float32)
    attention.attend(heads_BXD.numpy(), *turn, prompt, np.array([2]), np.array([0, 0]), own, 0, 1.0, out_BHD.numpy())
    assert out_BHD[0].isfinite().all() and out_BHD[1].isnan().all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rollouts_are_those_of_the_operators(dtype: str, build_policy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of ragged prompts, most of which leave early."""
    says, used, turns = make_says([*ragged(6, seed=2) * 4], Sampling(16)), list[type](), []

    def counted(kind: Any) -> Any:
        honest = kind.keep

        def counting(self: Any, *given: Any) -> None:
            used.append(type(self))
            honest(self, *given)

        return counting

    for compute, kind in (("cpu", cached.PrefixCache), ("torch", torch_backend.RowCache)):
        monkeypatch.setattr(kind, "keep", counted(kind))
        policy = build_policy(dtype=dtype, compute=compute)
        policy.eos = frozenset(range(0, 60, 9))
        turns.append(LocalEngine({"a": policy}).generate({"a": says})["a"])
        assert set(used) == {kind}
        used.clear()
    pairs = [(a, b) for a, b in zip(*turns, strict=True) if a.action_ids == b.action_ids]
    assert len(pairs) == len(says) if dtype == "float32" else len(pairs) > len(says) // 2
    off = 1e-5 if dtype == "float32" else 0.1
    for a, b in pairs:
        torch.testing.assert_close(torch.tensor(a.logps), torch.tensor(b.logps), rtol=off, atol=off)


def test_loops_that_nobody_can_keep_are_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(self: Any) -> None:
        raise RuntimeError("no locator available")

    monkeypatch.setattr(type(in_panels.product), "enable_caching", nowhere)
    from coevolve.compute.cpu.loops.loop import by_numba

    double = by_numba({"contract"})(lambda x: x + x)
    assert double(2) == 4


def test_loops_are_compiled_again_when_one_of_their_files_has_changed(tmp_path: Path) -> None:
    """numba itself would keep what has not changed and is made of what has."""
    shutil.copytree(Path(compiling.__file__).parent, tmp_path / "loops", ignore=shutil.ignore_patterns("__pycache__"))
    kept = tmp_path / "loops" / "__pycache__"
    kept.mkdir()
    now = time.time()
    for name, age in (("old.nbi", 50), ("new.nbi", 0)):
        (kept / name).touch()
        os.utime(kept / name, (now - age, now - age))
    for file in (tmp_path / "loops").glob("*.py"):
        os.utime(file, (now - 100, now - 100))
    os.utime(tmp_path / "loops" / "vectors.py", (now - 10, now - 10))
    importlib.machinery.SourceFileLoader("forgetful", str(tmp_path / "loops" / "loop.py")).load_module()
    assert sorted(file.name for file in kept.glob("*.nbi")) == ["new.nbi"]
