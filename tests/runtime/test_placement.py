"""Threads of PyTorch in a process that makes one team after another."""

from __future__ import annotations

import pytest
import torch
from policy_cases import Build
from toy import toy

from coevolve.engines.local import LocalEngine
from coevolve.models.spec import PolicySpec
from coevolve.runtime import placement
from coevolve.runtime.placement import Threads, use_threads


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


def test_large_products_of_loops_have_the_threads_that_pytorch_had_unless_others_are_said() -> None:
    for threads, one, count in [(None, True, 3), (1, True, 1), (None, True, 3), (None, False, 1), (2, False, 1)]:
        use_threads(threads, one)
        assert placement.product_threads() == count
    torch.set_num_threads(1)  # by the program, or OMP_NUM_THREADS
    use_threads(None, one=True)
    assert placement.product_threads() == 1


@pytest.mark.parametrize(("threads", "count"), [(None, 3), (1, 1)])
def test_a_copy_that_an_engine_loads_leaves_large_products_their_threads(threads: int | None, count: int) -> None:
    use_threads(threads, one=True)
    for _ in range(2):
        placement.use_one_thread()
        assert (torch.get_num_threads(), placement.product_threads()) == (1, count)


def test_where_all_is_torchs_a_copy_by_loops_has_the_threads_that_torch_had() -> None:
    use_threads(None, one=False)
    placement.use_one_thread()
    assert (torch.get_num_threads(), placement.product_threads()) == (1, 3)


def test_processes_share_the_threads_of_who_waits_for_them() -> None:
    use_threads(None, one=True)
    assert [Threads.share(among) for among in (1, 2, 3, 4)] == [
        Threads(1, 3),
        Threads(1, 1),
        Threads(1, 1),
        Threads(1, 1),
    ]
    torch.set_num_threads(9)
    use_threads(None, one=False)
    assert Threads.share(2) == Threads(4, 1)
    Threads(2, 3).use()
    assert (torch.get_num_threads(), placement.product_threads()) == (2, 3)


def test_a_new_thread_is_told_how_many_threads_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its products would be divided among as many as OMP_NUM_THREADS says until somebody asks PyTorch for the number,
    which is why that is not asked here."""
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    with placement.thread_pool(1, "place") as threads:
        threads.submit(int).result()
    assert told == [3]


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
    published = policy.published(0)
    published = type(published)(**(vars(published) | {"policy": None}))
    use_threads(2, one=False)
    LocalEngine().publish([published])
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("said", "count"), [(None, 2), ("3", 3)])
def test_a_containers_quota_bounds_pytorchs_default(
    said: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three threads that share the time of two cores stand still for a third of it."""
    monkeypatch.setattr(placement, "quota", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    use_threads(None, one=True)
    assert placement.product_threads() == count
    use_threads(None, one=False)
    assert torch.get_num_threads() == count
    torch.set_num_threads(4)  # by the program, which knows what it does
    use_threads(None, one=False)
    assert torch.get_num_threads() == 4
