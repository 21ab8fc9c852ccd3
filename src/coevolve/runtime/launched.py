"""Ranks that torchrun started, under Slurm for example: the first process trains, and in a thread is a rank, too; each
of the other processes is a rank of one policy only.

``torchrun --nproc-per-node 4 --no-python coevolve train recipe.yaml`` starts the same command in every process. The
processes meet in torchrun's store; the first process calls the ranks as in ``ranks``, through a connection to each.
Policies get processes in the order in which they ask for them. If one process fails, torchrun ends all of them.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from coevolve.faults import RanksError, ShortageError
from coevolve.runtime.beside import Beside
from coevolve.runtime.ranks import Connected, Rank, answer_all

_WHERE = "coevolve/first process"
_LONG = timedelta(days=1)
"""How long the other processes wait for the first one, which may have a model to pre-train. If the first process ends,
torchrun ends the others."""


class LaunchedRank(Rank):
    """A rank in a process of torchrun; it meets the other ranks of its policy in torchrun's store."""

    def __init__(self, number: int, count: int, store: Store) -> None:
        super().__init__(number, count)
        self._store = store

    def open(self) -> None:
        """Do nothing: the ranks have a store already, torchrun's."""


class TorchrunRanks(Connected):
    """Ranks of one policy, in the next free processes of torchrun."""

    own_card = True

    def __init__(self, name: str, count: int, device: str, seconds: float) -> None:
        super().__init__(name, count, device, seconds)
        free = _processes(seconds)
        if len(free) < count:
            raise ShortageError(
                f"policy {name!r}: {count} ranks, and {len(free)} of torchrun's processes are free; start so many as "
                "all ranks of all policies that learn are"
            )
        self.connections, free[:count] = free[:count], []
        for number, connection in enumerate(self.connections):
            connection.send((name, number, count))

    def how_it_ended(self, rank: int) -> str:
        """Refer to torchrun's output: if one process fails torchrun ends the others of its machine, and the end of one
        of those may be noticed here first."""
        return "torchrun tells which failed first, and how"

    def _lost(self, ranks: Sequence[int], why: str) -> ShortageError:
        """Return a RanksError that is no RanksLostError: only torchrun can start the ranks again."""
        return RanksError(f"{super()._lost(ranks, why)}; start torchrun again")

    def end(self) -> None:
        """Close the connections; torchrun ends the processes that hang."""
        for connection in self.connections:
            connection.close()


def serve() -> bool:
    """Run this process as a rank until the first process is gone. In the first process, return False at once: it
    trains."""
    store, number = _met()
    if number == 0:
        return False
    _see_own_card()
    host, port, key = json.loads(store.get(_WHERE))
    store.set(_key(number), "here")
    try:
        connection = Client((host, port), authkey=bytes.fromhex(key))
    except OSError as error:  # raised, as the first process would wait for this one forever
        raise ShortageError(
            f"process {number} of torchrun cannot reach the first one at {host}:{port}: {error}; the name of its "
            "machine has to mean an address that the others reach"
        ) from error
    with suppress(EOFError, OSError), connection:
        _keep_alive(connection)
        connection.send(number)
        _be(connection, store)
    return True


def _see_own_card() -> None:
    """Make only the GPU of this process's local rank visible, before CUDA is initialized."""
    local, seen = os.environ["LOCAL_RANK"], os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = local if seen is None else ",".join(seen.split(",")[int(local) :][:1])


def _be(connection: Any, store: Store) -> None:
    """Run this process as a rank: receive its policy, its number and the number of ranks, then answer calls."""
    name, number, count = connection.recv()
    answer_all(connection, LaunchedRank(number, count, PrefixStore(f"coevolve/{name}", store)))


def _met() -> tuple[Store, int]:
    """Return torchrun's store, and this process's rank in torchrun's world. Raises ValueError if torchrun did not start
    this process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        raise ValueError(
            "learner.cluster is torchrun, which did not start this; "
            "`torchrun --nproc-per-node RANKS --no-python coevolve train RECIPE` does, or leave cluster out"
        )
    store, number, _ = next(rendezvous("env://", timeout=_LONG))
    return store, number


_free: list[list[Connection]] = []
"""The connections to all processes that no policy has taken yet, as one list; empty until they have connected."""


def _processes(seconds: float) -> list[Connection]:
    """Return the connections to all processes that no policy has taken yet, the first one to this process's thread. The
    first call raises ShortageError if not all processes come within ``seconds``."""
    if not _free:
        _free.append(_all_processes(seconds))
    return _free[0]


def _all_processes(seconds: float) -> list[Connection]:
    store, _ = _met()
    count, key = int(os.environ["WORLD_SIZE"]), os.urandom(16)
    here, there = Pipe()
    threading.Thread(target=_in_thread, args=(there, store), daemon=True).start()
    with Listener((os.environ["MASTER_ADDR"], 0), backlog=count, authkey=key) as listener:
        store.set(_WHERE, json.dumps([*listener.address, key.hex()]))
        try:
            store.wait([_key(number) for number in range(1, count)], timedelta(seconds=seconds))
        except RuntimeError as error:
            raise ShortageError(f"not all of torchrun's {count} processes came within {seconds:g} s") from error
        # Each has said that it comes; one that dies before it does would be waited for.
        coming = Beside(lambda: [listener.accept() for _ in range(1, count)])
        others = coming.found(seconds, f"not all of torchrun's {count} processes connected")
    by_number = dict[int, Connection]()
    for connection in others:
        if not connection.poll(seconds):
            raise ShortageError(f"a process of torchrun connected, and did not say which within {seconds:g} s")
        by_number[connection.recv()] = connection
        _keep_alive(connection)
    return [here, *(by_number[number] for number in sorted(by_number))]


def _keep_alive(connection: Connection) -> None:
    """Have the operating system close a connection on which nothing is under way to a machine that has been silent for
    half a minute, as one without power or network is; it would wait for hours. It asks the other machine, not the
    process, which may be stopped. What is under way is waited for until the ranks' deadline."""
    options = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if number := getattr(socket, name, None):  # not every system has all of them
                own.setsockopt(socket.IPPROTO_TCP, number, value)


def _in_thread(connection: Connection, store: Store) -> None:
    with suppress(EOFError, OSError):
        _be(connection, store)


def _key(number: int) -> str:
    return f"coevolve/process {number}"
