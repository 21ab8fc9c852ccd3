"""Attention kernels: which is used for what, and that the GPU's is tried before."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import played_gpu
import pytest
import torch

from coevolve.policies import kernels, partial


@pytest.fixture(autouse=True)
def nothing_tried() -> Iterator[None]:
    partial._right.cache_clear()
    yield
    partial._right.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_is_right_is_found_to_be(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    played_gpu.play(monkeypatch)
    assert partial._right(torch.device("cpu"), dtype, 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", ["log-sum-exp", "mask", "gradient"])
def test_a_kernel_that_is_not_is_left_alone(wrong: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*given: Any, scale: float) -> Any:
        q, k, v, mask, *others = given
        out, lse, *rest = played_gpu.forward(q, k, v, None if wrong == "mask" else mask, *others, scale=scale)
        return out, lse * 1.4427 if wrong == "log-sum-exp" else lse, *rest

    def backward(*given: Any, scale: float) -> Any:
        dq, dk, dv, none = played_gpu.backward(*given, scale=scale)
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


def test_the_gpus_operators_take_what_they_are_given() -> None:
    """Their own signatures and shapes, of tensors that have no memory."""
    with torch.device("meta"):
        q, k = (torch.empty(3, 4, n, 64, dtype=torch.bfloat16) for n in (40, 21))
        late_MP = torch.empty(3, 21, dtype=torch.bool)
    out, lse = kernels.GPU.forward(q, k, k, late_MP, False, 0.1)
    assert out.shape == q.shape and lse.shape == q.shape[:3] and lse.dtype == torch.float32
    dq, dk, dv = kernels.GPU.backward(kernels.Seen(out, q, k, k, out, lse), late_MP, False, 0.1)
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
