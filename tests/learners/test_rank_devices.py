"""Which card a rank is on, and of what kind ranks are, where cards are numbered by machine and seen one by one; and
what is asked of ranks, without any."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Literal

import pytest
import torch
from policy_cases import make_batch

from coevolve import PolicySpec
from coevolve.learners import fsdp, shard, sharded


@pytest.mark.parametrize(("own_card", "count", "at"), [(True, 1, "cuda:0"), (False, 8, "cuda:6")])
def test_a_rank_that_sees_its_own_card_alone_is_on_its_first(
    monkeypatch: pytest.MonkeyPatch, own_card: bool, count: int, at: str
) -> None:
    """The recipe says ``cuda:4``, of the machine's cards; the rank is number 2 of four."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    def loaded(specs, *_: object) -> None:
        raise LookupError(specs["ann"].device)

    monkeypatch.setattr(shard, "loaded", loaded)
    how = {"reference": False, "seed": 0}
    with pytest.raises(LookupError, match=f"^{at}$"):
        shard.build("ann", PolicySpec("coevolve-tiny", device="cuda:4"), own_card, how, 2, 4)


@pytest.mark.parametrize(("weights", "compute"), [("full", "torch"), ("lora", "auto")])
def test_no_loops_read_weights_that_are_in_parts(
    monkeypatch: pytest.MonkeyPatch, weights: Literal["full", "lora"], compute: str
) -> None:
    def loaded(specs, *_: object) -> None:
        raise LookupError(specs["ann"].compute)

    monkeypatch.setattr(shard, "loaded", loaded)
    how = {"reference": False, "seed": 0}
    with pytest.raises(LookupError, match=f"^{compute}$"):
        shard.build("ann", PolicySpec("coevolve-tiny", weights=weights, device="cpu"), False, how, 0, 1)


@pytest.mark.parametrize(
    ("own_card", "device", "at"), [(True, "cuda:3", "cuda"), (False, "cuda:3", "cuda:3"), (True, "auto", "auto")]
)
def test_a_copy_is_on_a_card_that_this_process_sees(own_card: bool, device: str, at: str) -> None:
    """A local engine's: where ranks have a card each, the recipe's number is of another process, or machine."""
    learner = sharded_learner(PolicySpec("coevolve-tiny", device=device), own_card)
    assert learner.published(1).spec.device == at


def test_a_state_is_taken_though_its_folder_cannot_go_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on NFS, where a file that is mapped keeps a name in it."""
    learner = sharded_learner(PolicySpec("coevolve-tiny"), own_card=False)
    monkeypatch.setattr(learner, "_saved", lambda what, file: torch.save({"optimizer": {}}, file))

    def busy(path: str, **_: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", path)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        assert learner.training_state() == {"optimizer": {}}


def sharded_learner(spec: PolicySpec, own_card: bool) -> sharded.ShardedLearner:
    """Without ranks, which say yes to all."""
    learner = object.__new__(sharded.ShardedLearner)
    learner.name, learner.spec, learner.own_card, learner.tokenizer = "ann", spec, own_card, None
    learner.facts, learner.version = {"context": 99, "eos": frozenset()}, 0
    learner._ask = lambda *_: []  # type: ignore[method-assign]
    return learner


@pytest.mark.parametrize(("reference", "critic", "key"), [(True, False, "kl_BT"), (False, True, "value_BT")])
def test_ranks_describe_a_batch_for_one_of_two(reference: bool, critic: bool, key: str) -> None:
    learner, batch = sharded_learner(PolicySpec("coevolve-tiny"), own_card=False), make_batch(2, seed=0)
    found_BT = torch.ones(batch.mask_BT.shape)
    learner.how = {"reference": reference, "critic": critic}
    learner._ask = lambda *_: [(torch.arange(2), {key: found_BT})]  # type: ignore[method-assign]
    assert torch.equal(getattr(learner.describe(batch), key), found_BT)


def test_what_was_written_on_another_machine_is_told(tmp_path: Path) -> None:
    learner = sharded_learner(PolicySpec("coevolve-tiny"), own_card=False)
    for _ in range(2):  # no folder, and one with nothing in it
        with pytest.raises(ValueError, match=r"^policy 'ann': its first rank wrote .*agent on another machine"):
            learner.save(tmp_path / "agent")
        (tmp_path / "agent").mkdir(exist_ok=True)
    (tmp_path / "agent" / "config.json").touch()
    learner.save(tmp_path / "agent")


def test_ranks_have_the_deadline_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "SpawnedRanks", lambda *given: given)
    monkeypatch.setattr(sharded, "ShardedLearner", lambda name, spec, start, **how: start(name))
    made = fsdp("ann", PolicySpec("m", device="cpu"), False, False, 1, 0, ranks=2, deadline=7.0)
    assert made == ("ann", 2, "cpu", 7.0)


def test_the_kind_of_ranks_needs_no_card_of_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(sharded, "TorchrunRanks", lambda *given: given)
    assert sharded.starter("cuda:4", 4, "torchrun", True, 9.0)("ann") == ("ann", 4, "cuda", 9.0)
