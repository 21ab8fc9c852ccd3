"""Ranks in torchrun's processes; a run of them is in ``learners/test_sharded_run.py``."""

from __future__ import annotations

import json
import os
import socket
from multiprocessing.connection import Client
from threading import Thread, current_thread
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


def test_both_ends_ask_whether_the_other_machine_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without power says no goodbye; by itself Linux would ask after two hours."""
    store, found = Come(), list[list[int]]()
    monkeypatch.setattr(launched, "_met", lambda: (store, int(current_thread().name == "the other")))
    monkeypatch.setattr(launched, "_in_thread", lambda *_: None)  # the rank in the first process
    monkeypatch.setattr(launched, "_be", lambda connection, _: found.append(asked_after(connection)))
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    other = Thread(target=launched.serve, name="the other")
    other.start()
    _, connection = launched._all_processes(20.0)
    found.append(asked_after(connection))
    other.join(20.0)
    assert found == [[1, 10, 5, 4]] * 2


def asked_after(connection: Any) -> list[int]:
    """Whether the system asks for the other end of a connection, after which seconds, how often and how many times."""
    options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        asks = own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return [asks, *(own.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options)]


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
