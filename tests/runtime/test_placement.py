"""Threads of PyTorch in a process that makes one team after another."""

from __future__ import annotations

import pytest
import torch
from policy_cases import Build
from toy import toy

from coevolve.engines.local import LocalEngine
from coevolve.models.spec import PolicySpec
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
