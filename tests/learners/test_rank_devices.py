"""Which card a rank is on, and of what kind ranks are, where cards are numbered by machine and seen one by one."""

from __future__ import annotations

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


def test_the_kind_of_ranks_needs_no_card_of_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(sharded, "Launched", lambda *given: given)
    assert sharded.starter("cuda:4", 4, sharded.TORCHRUN, 9.0)("ann") == ("ann", 4, "cuda", 9.0)
