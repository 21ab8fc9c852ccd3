"""Ranks in torchrun's processes; a run of them is in ``learners/test_sharded_run.py``."""

from __future__ import annotations

import json
import os
import socket
from multiprocessing.connection import Client, Listener
from threading import Thread
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from coevolve.faults import ShortageError
from coevolve.runtime import launched


def test_a_first_process_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the process would end as if all had gone well, and the first one would wait for it forever."""
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        port, store = closed.getsockname()[1], HashStore()
        store.set(launched._WHERE, json.dumps(["127.0.0.1", port, "00" * 16]))
        monkeypatch.setattr(launched, "_met", lambda: (store, 1))
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        with pytest.raises(
            ShortageError, match=f"process 1 of torchrun cannot reach the first one at 127.0.0.1:{port}"
        ):
            launched.serve()


class Come(HashStore):
    """A store in which all processes have said that they come."""

    def wait(self, keys: Any, *_: Any) -> None:
        pass


@pytest.mark.parametrize("connects", [False, True])
def test_a_process_that_says_that_it_comes_and_does_not_is_told(
    connects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or comes, and does not say which it is."""
    store = Come()
    monkeypatch.setattr(launched, "_met", lambda: (store, 0))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    found, waits = list[Any](), Thread(target=lambda: found.append(silent(store)), daemon=True)
    if connects:
        waits.start()
    words = "connected, and did not say which" if connects else "not all of torchrun's 2 processes connected"
    with pytest.raises(ShortageError, match=f"{words} within 1 s"):
        launched._all_processes(1.0)


def test_a_machine_that_falls_silent_is_noticed() -> None:
    """Without power it says no goodbye; by itself Linux would ask after two hours."""
    with Listener(("127.0.0.1", 0)) as listener, Client(listener.address) as ours, listener.accept():
        launched._keep_alive(ours)
        with socket.socket(fileno=os.dup(ours.fileno())) as own:
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
            idle, between, times = (own.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options)
        ours.send("still open")
    assert idle + between * times == 30


def silent(store: Any) -> Any:
    host, port, key = json.loads(store.get(launched._WHERE))
    return Client((host, port), authkey=bytes.fromhex(key))


@pytest.mark.parametrize(("seen", "own"), [("4,GPU-1a,7", "7"), (None, "2"), ("4", "")])
def test_a_process_sees_the_card_of_its_number_alone(
    seen: str | None, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen or "")
    if seen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    launched._see_own_card()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == own
