"""Calls of all ranks at once, without ranks; those of processes are in ``learners/test_sharded.py``."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import warnings
from collections.abc import Collection
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from coevolve.faults import RanksLostError
from coevolve.recipe.components import from_file
from coevolve.runtime import ranks as ranks_of
from coevolve.runtime.pool import Failure, JobError
from coevolve.runtime.ranks import Connected, Ranks, packed


def test_where_one_has_failed_the_others_are_not_waited_for_until_the_deadline() -> None:
    """They hang in a collective with the one that failed."""
    ranks: Any = Ranks("ann", 2, "cpu", 1800.0)
    waited: list[float] = []

    def done(waiting: Collection[int], seconds: float) -> list[int]:
        waited.append(seconds)
        return [1] if len(waited) == 1 else []

    ranks.send, ranks.done, ranks.end = lambda asked: None, done, lambda: None
    ranks.answer = lambda rank, seconds: pickle.dumps((None, Failure(ValueError, "no", "")))
    with pytest.raises(ValueError, match=r"^policy 'ann', rank 1 of 2, update of step 3: no$"):
        ranks.ask("of step 3", "update")
    assert waited[0] > 5.0 >= waited[1] and ranks.ended


def test_more_ranks_than_cores_are_told_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_of, "cores", lambda: 2)
    monkeypatch.setattr(ranks_of.multiprocessing, "get_context", lambda method: None)  # which starts nothing
    for count, said in ((2, []), (3, ["policy 'ann': 3 ranks share 2 cores of this machine"])):
        with warnings.catch_warnings(record=True) as told, suppress(AttributeError):
            ranks_of.SpawnedRanks("ann", count, "cpu", 60.0)
        assert [str(one.message) for one in told] == said


def test_the_rank_that_failed_first_is_told_and_not_the_one_that_waits_for_it() -> None:
    ranks: Any = Ranks("ann", 2, "cpu", 1800.0)
    ranks.send, ranks.done, ranks.end = lambda asked: None, lambda waiting, seconds: waiting, lambda: None

    def answer(rank: int, seconds: float) -> bytes:
        if rank == 1:
            raise TimeoutError
        return pickle.dumps((None, Failure(ValueError, "no", "")))

    ranks.answer = answer
    with pytest.raises(ValueError, match=r"^policy 'ann', rank 0 of 2, update of step 3: no$"):
        ranks.ask("of step 3", "update")
    assert ranks.ended


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (
            Failure(JobError, "RuntimeError: Connection closed by peer", ""),
            r"^rank 1 of 2 of policy 'ann' died \(pid 7.*; rank 0 had said: RuntimeError: Connection closed by peer$",
        ),
        (Failure(OSError, "ConnectionError", ""), r"^rank 1 of 2 of policy 'ann' died \(pid 7"),
        (Failure(ValueError, "no", ""), r"^policy 'ann', rank 0 of 2, update of step 3: no$"),
    ],
)
def test_of_a_rank_that_died_and_one_that_lost_its_connection_the_dead_one_is_told(failure: Failure, told: str) -> None:
    """The connection's end may arrive first. An error for the user is not one of the connection."""
    ranks: Any = Ranks("ann", 2, "cpu", 1800.0)
    ranks.send, ranks.done, ranks.end = lambda asked: None, lambda waiting, seconds: waiting[:1], lambda: None

    def answer(rank: int, seconds: float) -> bytes:
        if rank == 1:
            raise EOFError("pid 7")
        return pickle.dumps((None, failure))

    ranks.answer = answer
    with pytest.raises(ValueError if failure.kind is ValueError else RanksLostError, match=told):
        ranks.ask("of step 3", "update")
    assert ranks.ended


def test_a_rank_that_stops_while_it_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coevolve.runtime.ranks._GRACE", 0.2)
    ranks, (ours, theirs) = Connected("ann", 1, "cpu", 0.5), Pipe()
    ranks.connections, ranks.end = [ours], ours.close  # type: ignore[method-assign]
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"half")  # a length, and less than that
    with pytest.raises(
        RanksLostError, match=r"^rank 0 of 1 of policy 'ann' had not sent its whole answer after 0.5 s \("
    ):
        ranks.ask("of step 3", "update")
    assert ranks.ended
    theirs.close()


def test_a_loss_of_the_users_own_file_is_found_where_nobody_has_imported_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def loss():\n    return 7\n")
    loss = from_file(f"{tmp_path / 'mine.py'}:loss", (), "loss")
    asked = packed((loss,), "update", "here")
    monkeypatch.delitem(sys.modules, loss.__module__)  # as in a rank
    what, (found,) = pickle.loads(asked)
    assert (what, found()) == ("update", 7) and found is not loss
