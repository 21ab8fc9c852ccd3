"""Threads of PyTorch in a process that makes one team after another."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from policy_cases import Build
from toy import toy

from coevolve.engines.local import LocalEngine
from coevolve.models.spec import PolicySpec
from coevolve.runtime import placement
from coevolve.runtime.placement import use_threads


@pytest.fixture(autouse=True)
def threads_of_the_program(one_thread: None) -> None:
    """Three, before anybody has asked for others."""
    torch.set_num_threads(3)


def test_a_team_leaves_no_threads_to_the_next() -> None:
    use_threads(None, one=False)
    assert torch.get_num_threads() == 3
    for threads, one, count in [(None, True, 1), (None, False, 3), (2, False, 2), (None, False, 3), (None, True, 1)]:
        use_threads(threads, one)
        use_threads(threads, one)
        assert torch.get_num_threads() == count


def test_large_products_of_loops_have_all_cores_unless_threads_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "cores", lambda: 6)
    for threads, one, count in [(None, True, 6), (1, True, 1), (None, True, 6), (None, False, 1), (3, False, 1)]:
        use_threads(threads, one)
        assert placement.product_threads() == count


@pytest.mark.parametrize(("by", "many"), [("nothing", True), ("AMX", False), ("AVX512-BF16", False)])
def test_who_samples_from_a_copy_that_is_kept(by: str, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large models held in bfloat16: on few cores, and where PyTorch's threads have no instructions for it on all."""
    monkeypatch.setattr(placement, "bfloat16_by", lambda: by)
    lora, frozen = (PolicySpec("m", weights=weights, dtype="bfloat16") for weights in ("lora", "frozen"))
    for count, kept in ((2, True), (3, many)):
        monkeypatch.setattr(placement, "cores", lambda count=count: count)
        assert placement.keeps_copy([lora, frozen]) is kept
        assert not placement.keeps_copy([lora, dataclasses.replace(lora, weights="full")])
        assert not placement.keeps_copy([dataclasses.replace(lora, dtype="float32")])


def test_what_the_program_says_meanwhile_counts() -> None:
    use_threads(None, one=True)
    torch.set_num_threads(2)
    use_threads(None, one=True)
    use_threads(None, one=False)
    assert torch.get_num_threads() == 2


def test_a_team_by_torch_behind_one_by_loops_has_the_threads_it_would_have_alone(micro_model: str) -> None:
    pytest.importorskip("numba")
    found = []
    for compute in ("torch", "cpu", "torch"):
        spec = PolicySpec(micro_model, compute=compute)  # type: ignore[arg-type]
        found.append(toy(micro_model, policies={"ann": spec, "bob": spec}, workers=False).computing()["threads"])
    assert found == [3, 1, 3]


def test_a_copy_by_torch_leaves_the_threads_as_they_are(build_policy: Build) -> None:
    policy = build_policy(compute="torch", weights="frozen")
    use_threads(None, one=True)
    published = policy.published(0)
    published = type(published)(**(vars(published) | {"policy": None}))
    LocalEngine().publish([published])
    assert torch.get_num_threads() == 1
