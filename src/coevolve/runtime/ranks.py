"""Ranks: processes that each hold one shard of an object, such as a learner, and are all called at once.

They are started on this machine (here), by ``cluster`` or by ``launched``; their calls are the same: ``open`` and
``join``, which set up a process group of PyTorch, then methods of the object that each rank made. Every call has one
deadline. If a rank dies or misses the deadline, all ranks are ended: the others wait for it in a collective that
nothing else can end.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import signal
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import distributed
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from coevolve.faults import RanksLostError, ShortageError
from coevolve.recipe.components import USER, from_file
from coevolve.runtime.beside import Beside
from coevolve.runtime.cores import cores
from coevolve.runtime.pool import Failure, JobError, quiet_start

_SAID = 200
"""Characters of what another rank said that are told beside a death."""
_GRACE = 5.0
"""Seconds for the other ranks to answer once one has failed: those that do not are waiting for the failed one."""


class Rank:
    """The state of a rank's process: its number among ``count``, and ``thing``, the object made of its shard."""

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count
        self.thing: Any = None
        self._store: Store | None = None

    def do(self, asked: bytes) -> bytes:
        """Call the pickled method with its arguments; return, pickled, its result and None, or None and its failure."""
        found: tuple[Any, Failure | None]
        try:
            what, given = pickle.loads(asked)
            found = getattr(self if self.thing is None else self.thing, what)(*given), None
        except BaseException as error:  # noqa: BLE001 (the other end raises it)
            found = None, Failure.of(error)
        return pickle.dumps(found)

    def host(self) -> str:
        """Return the address at which the other ranks reach this one."""
        return "127.0.0.1"

    def open(self) -> tuple[str, int] | None:
        """On the first rank, open the store in which all ranks meet and return its host and port; else return None."""
        if self.number:
            return None
        self._store = store = TCPStore(self.host(), 0, is_master=True, wait_for_workers=False)
        return self.host(), store.port

    def join(self, place: tuple[str, int] | None, backend: str, seconds: float, make: Callable[[int, int], Any]) -> Any:
        """Join the process group, make this rank's object, and return the object's ``facts()``. place: what the first
        rank's ``open`` returned. backend: that of ``torch.distributed``."""
        torch.set_num_threads(1)
        within = timedelta(seconds=seconds)
        if self._store is None:
            assert place is not None, "the first rank opened none"
            self._store = TCPStore(*place, is_master=False, timeout=within)
        distributed.init_process_group(
            backend, store=self._store, rank=self.number, world_size=self.count, timeout=within
        )
        self.thing = make(self.number, self.count)
        return self.thing.facts()


class Ranks:
    """All ranks of one policy, called together; a subclass starts them (``SpawnedRanks`` on this machine).

    name: the policy, for errors. device: its kind, "cpu" or "cuda". seconds: the deadline of every call.
    """

    own_card = False
    """Whether each rank sees only its own GPU."""
    ended = False

    def __init__(self, name: str, count: int, device: str, seconds: float) -> None:
        self.name, self.count, self.device, self.seconds = name, count, device, seconds

    def start(self, make: Callable[[int, int], Any]) -> Any:
        """Set up the process group and have each rank make its object; return the ``facts()`` of the first one's."""
        backend = "gloo" if self.device == "cpu" else "nccl"  # gloo beside it needs host names that resolve everywhere
        place = self.ask("at the start", "open")[0]
        return self.ask("at the start", "join", place, backend, self.seconds, make)[0]

    def ask(self, when: str, what: str, *given: Any) -> list[Any]:
        """Call the method ``what`` on every rank and return the results. when: the step or version, for errors.

        Raises ValueError for arguments that cannot be sent, before any rank is called. Raises RanksLostError (under
        torchrun RanksError) if a rank died or the deadline passed, and the error of the rank that failed first; the
        ranks are then ended, unless all failed with the same error.
        """
        where, end = f"{what} {when}", time.monotonic() + self.seconds
        asked = packed(given, what, f"policy {self.name!r}, {where}")
        found, failed = dict[int, Any](), dict[int, Failure]()
        try:
            self.send(asked)
            try:
                self._collect(where, end, found, failed)
            except ShortageError as lost:
                if not failed:
                    raise
                [rank, first], *_ = failed.items()
                if _is_why(lost, first):
                    raise type(lost)(f"{lost}; rank {rank} had said: {first.said[:_SAID]}") from lost
            alike = len(failed) == self.count and len({failure.said for failure in failed.values()}) == 1
            if failed and not alike:
                [rank, first], *_ = failed.items()
                raise first.told(f"policy {self.name!r}, rank {rank} of {self.count}, {where}")
        except BaseException:
            self.close()
            raise
        if failed:  # they agree, so none has changed anything
            raise failed[0].alone()
        return [found[rank] for rank in range(self.count)]

    def _collect(self, where: str, end: float, found: dict[int, Any], failed: dict[int, Failure]) -> None:
        """Fill in the results and the failures of the ranks as they answer. Raises ShortageError if a rank died, or has
        not answered at ``end``, or soon after another one failed."""
        while len(found) < self.count:
            waiting = [rank for rank in range(self.count) if rank not in found]
            done = self.done(waiting, max(0.0, end - time.monotonic()))
            if not done:
                raise self._lost(waiting, f"did not answer within {self.seconds:g} s ({where})")
            for rank in done:
                found[rank], failure = self._answer(rank, where, max(0.0, end + _GRACE - time.monotonic()))
                if failure is not None:
                    failed[rank] = failure
                    end = min(end, time.monotonic() + _GRACE)

    def _answer(self, rank: int, where: str, seconds: float) -> tuple[Any, Failure | None]:
        try:
            answer: tuple[Any, Failure | None] = pickle.loads(self.answer(rank, seconds))
        except TimeoutError as error:
            late = f"had not sent its whole answer after {self.seconds:g} s ({where})"
            raise self._lost([rank], late) from error
        except EOFError as error:
            raise self._lost([rank], f"died ({error}; {where})") from error
        return answer

    def _lost(self, ranks: Sequence[int], why: str) -> ShortageError:
        numbers = ", ".join(map(str, ranks))
        whose = f"rank{'s' * (len(ranks) > 1)} {numbers} of {self.count} of policy {self.name!r}"
        return RanksLostError(f"{whose} {why}; its other ranks were ended")

    def send(self, asked: bytes) -> None:
        """Send a pickled call to every rank."""
        raise NotImplementedError

    def done(self, waiting: Collection[int], seconds: float) -> Collection[int]:
        """Return those of the ranks ``waiting`` that have answered or died; none if none has within ``seconds``."""
        raise NotImplementedError

    def answer(self, rank: int, seconds: float) -> bytes:
        """Return the pickled answer of a rank that is done. Raises EOFError, saying how, if it died, TimeoutError if
        the whole answer is not here after ``seconds``."""
        raise NotImplementedError

    def end(self) -> None:
        """End the ranks' processes."""
        raise NotImplementedError

    def close(self) -> None:
        """End the ranks; a second call does nothing."""
        if not self.ended:
            self.ended = True
            self.end()


class Connected(Ranks):
    """Ranks that are called through connections of ``multiprocessing``."""

    connections: list[Connection]

    def send(self, asked: bytes) -> None:
        """Send a call to every rank, in threads, as a rank that hangs does not read; ``done`` finds dead ranks."""
        for connection in self.connections:
            threading.Thread(target=_sent, args=(connection, asked), daemon=True).start()

    def done(self, waiting: Collection[int], seconds: float) -> Collection[int]:
        """Return the ranks whose connections can be read, which includes dead ones."""
        by_connection = {self.connections[rank]: rank for rank in waiting}
        return [by_connection[one] for one in wait(list(by_connection), seconds)]  # type: ignore[index]

    def answer(self, rank: int, seconds: float) -> bytes:
        """Return the pickled answer of a rank that is done, read in a thread, as a rank may stop while it sends."""
        reading = Beside(self.connections[rank].recv_bytes)
        if not reading.ended.wait(seconds):
            raise TimeoutError
        try:
            return reading.found(0.0, "")
        except (EOFError, OSError) as error:
            raise EOFError(self.how_it_ended(rank)) from error

    def how_it_ended(self, rank: int) -> str:
        """Say how a dead rank ended."""
        raise NotImplementedError


class SpawnedRanks(Connected):
    """Ranks in processes that this process spawned."""

    def __init__(self, name: str, count: int, device: str, seconds: float) -> None:
        super().__init__(name, count, device, seconds)
        self.connections = []
        self.processes: list[Any] = []
        self._end = weakref.finalize(self, _kill, self.processes)
        context = multiprocessing.get_context("spawn")
        if device == "cpu" and count > cores():
            warnings.warn(f"policy {name!r}: {count} ranks share {cores()} cores of this machine", stacklevel=2)
        with quiet_start():
            for number in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, number, count), daemon=True)
                process.start()
                theirs.close()
                self.connections.append(ours)
                self.processes.append(process)

    def how_it_ended(self, rank: int) -> str:
        """Say how a dead rank ended: its exit code, and whether it was killed."""
        process = self.processes[rank]
        process.join(_GRACE)
        why = ", perhaps for want of memory" if process.exitcode == -signal.SIGKILL else ""
        return f"process {process.pid}, exit code {process.exitcode}{why}"

    def end(self) -> None:
        """Kill the ranks: one that waits in a collective cannot be ended otherwise."""
        self._end()


def _is_why(lost: ShortageError, first: Failure) -> bool:
    """Return whether a rank died, so that another one, which lost its connection to it, failed with an error of a
    library or the system. A rank that did not answer waits for one that failed."""
    return isinstance(lost.__cause__, EOFError) and first.kind in (JobError, OSError)


def _sent(connection: Connection, asked: bytes) -> None:
    with suppress(OSError):
        connection.send_bytes(asked)


def _kill(processes: Sequence[Any]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _serve(connection: Connection, number: int, count: int) -> None:
    """Run a spawned rank until the process that spawned it is gone."""
    with suppress(EOFError, OSError):
        answer_all(connection, Rank(number, count))


def answer_all(connection: Connection, rank: Rank) -> None:
    """Answer the calls of a connection until its other end is gone, which raises EOFError or OSError."""
    while True:
        connection.send_bytes(rank.do(connection.recv_bytes()))


class _Pickler(pickle.Pickler):
    """A pickler that writes classes and functions of the user's own files as file and name: ranks have not imported
    those files."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type | types.FunctionType):
            if thing.__module__ == "__main__":
                raise ValueError(f"{thing.__qualname__} is of the script that runs; put it into a file that it imports")
            if "<" in thing.__qualname__:
                raise ValueError(
                    f"{thing.__qualname__} is inside a function, and ranks find only what stands at the top of a file; "
                    "write it there, and bind what it needs with functools.partial"
                )
            if thing.__module__.startswith(USER):
                return from_file, (f"{thing.__module__.removeprefix(USER)}:{thing.__qualname__}", (), "learner")
        return NotImplemented


def packed(given: Sequence[Any], what: str, where: str) -> bytes:
    """Return a call pickled for ranks. Raises ValueError for arguments that cannot be pickled."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump((what, given))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{where}: this cannot be sent to its ranks: {error}") from error
    return file.getvalue()
