"""Which card a rank is on, and of what kind ranks are, where cards are numbered by machine and seen one by one."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
import torch

from coevolve import PolicySpec
from coevolve.learners import shard, sharded


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
    learner.facts = {"context": 8, "eos": frozenset()}
    learner._ask = lambda *_: []  # type: ignore[method-assign]
    return learner


def test_the_kind_of_ranks_needs_no_card_of_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(sharded, "Launched", lambda *given: given)
    assert sharded.starter("cuda:4", 4, "torchrun", True, 9.0)("ann") == ("ann", 4, "cuda", 9.0)
