"""Attention kernels: which is used for what, and that the GPU's is tried before."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import played_gpu
import pytest
import torch
from policy_cases import Build, make_batch, make_rule, make_says, make_targets, ragged, turns_to_batch

from coevolve.compute import kernels, torch_backend
from coevolve.compute import partial_attention as partial
from coevolve.compute.prefix_cache import PrefixCache
from coevolve.engines.local import LocalEngine
from coevolve.types import Sampling


@pytest.fixture(autouse=True)
def nothing_tried() -> Iterator[None]:
    partial._right.cache_clear()
    yield
    partial._right.cache_clear()


@pytest.mark.parametrize("computing", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_is_right_is_found_to_be(
    dtype: torch.dtype, computing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever autocast says meanwhile."""
    played_gpu.play(monkeypatch)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=computing):
        assert partial._right(torch.device("cpu"), dtype, 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", ["log-sum-exp", "mask", "gradient", "the whole", "fillings"])
def test_a_kernel_that_is_not_is_left_alone(wrong: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*given: Any, scale: float) -> Any:
        q, k, v, mask, *others = given
        out, lse, *rest = played_gpu.forward(q, k, v, None if wrong == "mask" else mask, *others, scale=scale)
        return out, lse * 1.4427 if wrong == "log-sum-exp" else lse, *rest

    def backward(*given: Any, scale: float) -> Any:
        grad, q, k, v, mask, out, lse, *others = given
        if wrong == "the whole":  # taken for the part
            lse = played_gpu.forward(q, k, v, mask, True, 0.0, others[-1], scale=scale)[1]
        if wrong == "fillings":  # weigh something
            lse = lse.clone()
            lse[..., 37:40] = 0
        dq, dk, dv, none = played_gpu.backward(grad, q, k, v, mask, out, lse, *others, scale=scale)
        return dk if wrong == "gradient" else dq, dk, dv, none

    monkeypatch.setattr(torch.ops.aten, played_gpu.FORWARD, forward)
    monkeypatch.setattr(torch.ops.aten, played_gpu.BACKWARD, backward)
    assert not partial._right(torch.device("cpu"), dtype, 16)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, NotImplementedError])
def test_a_kernel_that_is_not_there_is_not_missed(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*_: object, **__: object) -> None:
        raise error("no such operator")

    monkeypatch.setattr(torch.ops.aten, played_gpu.FORWARD, forward)
    assert not partial._right(torch.device("cpu"), torch.float32, 16)


@pytest.mark.parametrize("causal", [False, True])
def test_the_gpus_operators_take_what_they_are_given(causal: bool) -> None:
    """Their own signatures and shapes, of tensors that have no memory."""
    with torch.device("meta"):
        q, k = (torch.empty(3, 4, n, 64, dtype=torch.bfloat16) for n in (40, 40 if causal else 21))
        late_MP = None if causal else torch.empty(3, 21, dtype=torch.bool)
    out, lse = kernels.GPU.forward(q, k, k, late_MP, causal, 0.1)
    assert out.shape == q.shape and lse.shape == q.shape[:3] and lse.dtype == torch.float32
    dq, dk, dv = kernels.GPU.backward(kernels.Seen(out, q, k, k, out, lse), late_MP, causal, 0.1)
    assert dq.shape == q.shape and dk.shape == dv.shape == k.shape


@pytest.mark.parametrize(("queries", "right", "fused"), [(32, True, True), (31, True, False), (32, False, False)])
def test_a_gpus_is_for_many_queries(queries: int, right: bool, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "_right", lambda *_: right)
    cuda = SimpleNamespace(type="cuda")
    x: Any = SimpleNamespace(shape=(1, 2, queries, 8), dtype=torch.bfloat16, device=cuda, is_cuda=True)
    assert partial._kernel(x, x, x) is (kernels.GPU if fused else partial.PLAIN)


def test_the_cpus_is_for_float32() -> None:
    x = torch.zeros(1, 1, 40, 8)
    assert partial._kernel(x, x, x) is kernels.CPU
    assert partial._kernel(*(x.bfloat16(),) * 3) is partial.PLAIN
    assert partial._kernel(x, x.bfloat16(), x) is partial._kernel(x, x, x[..., :4]) is partial.PLAIN


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("weights", ["full", "lora"])
@pytest.mark.parametrize("family", ["micro_model", "micro_gpt2"])
def test_bfloat16_reaches_the_kernel_as_such(
    family: str, weights: str, static: bool, build_policy: Build, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On a GPU, where attention is not float32's: rotations under autocast leave queries and keys in float32."""

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> kernels.Kernel:
        met.append(q.dtype == k.dtype == v.dtype == torch.bfloat16)
        return kernels.GPU

    def cache(*given: Any) -> PrefixCache:
        return PrefixCache(*given[:-1], static=static)

    met: list[bool] = []
    settings = {"model": request.getfixturevalue(family), "weights": weights, "dtype": "bfloat16", "compute": "torch"}
    policy = build_policy(**settings)
    batch = make_batch(12, seed=2)
    wanted = policy.update(batch, make_targets(batch, 0), make_rule(), 0)
    played_gpu.play(monkeypatch)
    monkeypatch.setattr(kernels, "wide", lambda _: False)
    monkeypatch.setattr(partial, "_kernel", kernel)
    monkeypatch.setattr(torch_backend, "PrefixCache", cache)
    policy = build_policy(**settings)
    assert policy.backend.uses_prefix_tree
    met.clear()  # a model is tried in float32 when it is loaded
    found = policy.update(batch, make_targets(batch, 0), make_rule(), 0)
    assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=0.02)
    turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(9, seed=3) * 3, Sampling(12))})["a"]
    batch = turns_to_batch(turns)
    assert policy.update(batch, make_targets(batch, 1), make_rule(), 0)["drift"] < 0.05
    assert len(met) > 20 and all(met)
