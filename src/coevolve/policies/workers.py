"""Sampling in processes: policies on the CPU, and rows of one, side by side.

Decoding is many small operations between which Python thinks, so threads gain little by it and processes much. Every
process holds all policies, but not their weights: these move, once, into memory that all processes see, where the
optimiser changes them and checkpoints restore them in place. So nothing is sent but ids and log-probabilities.

Processes are spawned (a fork would inherit the locks of PyTorch's threads) and do not import the user's script, which
therefore needs no ``if __name__ == "__main__"``. They end with the ``Workers`` they belong to, or with this process.
"""

from __future__ import annotations

import copy
import io
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
from torch import Tensor, nn

from coevolve.policies.decode import Spoken
from coevolve.policies.policy import LocalPolicy
from coevolve.types import PolicyName, Problem, Say

Says = Mapping[PolicyName, Sequence[Say]]
Work = Callable[[Mapping[PolicyName, LocalPolicy], Says], dict[PolicyName, list[Spoken]]]

_ALIGNED = 64
"""Tensors begin at multiples of so many bytes, as PyTorch's own do."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Processes, at most so many and started when they are needed, that do ``work`` for these policies, all on the CPU.

    Those that work at the same time share the threads that PyTorch uses here; each has at least one.
    """

    def __init__(self, policies: Mapping[PolicyName, LocalPolicy], most: int, work: Work) -> None:
        self.policies, self.most, self.work = policies, most, work
        self._memory: _Memory | None = None
        self._speakers = b""
        self._running: list[_Worker] = []
        weakref.finalize(self, _end, self._running)

    def __call__(self, jobs: Sequence[Says]) -> list[dict[PolicyName, list[Spoken]]]:
        """What is found for every job, each done by one process. An error or interrupt ends the processes.

        Raises RuntimeError naming the policies whose process failed or died.
        """
        found: dict[int, dict[PolicyName, list[Spoken]]] = {}
        count = min(self.most, len(jobs))
        threads = max(1, torch.get_num_threads() // count)
        try:
            self._ready(count)
            waiting, free, busy = [*enumerate(jobs)], self._running[:count], dict[Any, tuple[int, _Worker]]()
            while waiting or busy:
                while waiting and free:
                    (number, job), worker = waiting.pop(0), free.pop(0)
                    worker.ask(job, threads)
                    busy[worker.connection] = number, worker
                for connection in wait(list(busy)):
                    number, worker = busy.pop(connection)
                    found[number] = worker.answer()
                    free.append(worker)
        except BaseException:
            self.close()  # else a later call would read this one's answers
            raise
        return [found[number] for number in range(len(jobs))]

    def close(self) -> None:
        """End the processes; the next call starts others."""
        _end(self._running)

    def _ready(self, count: int) -> None:
        """So many processes that run, and see the weights of now."""
        if self._memory is not None and self._running:
            self._memory.gather()
        else:
            self._share()
        assert self._memory is not None
        if len(self._running) < count:
            with _quiet_start():
                while len(self._running) < count:
                    self._running.append(_Worker(self._memory, self._speakers, self.work))

    def _share(self) -> None:
        """Move the weights into memory that all processes see."""
        file = io.BytesIO()
        pickler = _Pickler(file)
        try:
            pickler.dump({name: _speaker(policy) for name, policy in self.policies.items()})
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            names = ", ".join(self.policies)
            raise ValueError(f"policies {names} cannot speak in processes: {error}; set workers to false") from error
        self._memory, self._speakers = _Memory(list(pickler.tensors.values())), file.getvalue()


class _Worker:
    """This process's end of one worker."""

    def __init__(self, memory: _Memory, policies: bytes, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.asked: list[PolicyName] = []
        args = (theirs, memory, policies, work)
        self.process: SpawnProcess = context.Process(target=_serve, args=args, daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, says: Says, threads: int) -> None:
        """Hand over a job to be done with so many threads, without the problems' data, which nobody there reads."""
        self.asked = [name for name, asked in says.items() if asked]
        job = {name: [replace(say, problem=Problem(say.problem.id)) for say in asked] for name, asked in says.items()}
        try:
            self.connection.send((job, threads))
        except OSError as error:
            raise self._died() from error

    def answer(self) -> dict[PolicyName, list[Spoken]]:
        """What it found."""
        try:
            found, error = self.connection.recv()
        except (EOFError, OSError) as lost:
            raise self._died() from lost
        if error is not None:
            raise RuntimeError(f"the process that spoke for {', '.join(self.asked)} failed:\n{error}")
        answer: dict[PolicyName, list[Spoken]] = found
        return answer

    def _died(self) -> RuntimeError:
        self.process.join(5)
        code = self.process.exitcode
        why = "killed, perhaps for want of memory" if code == -signal.SIGKILL else "its own output says why"
        return RuntimeError(
            f"the process that speaks for {', '.join(self.asked)} ended with exit code {code} ({why}); "
            "workers: false does without processes"
        )


class _Memory:
    """Tensors in one piece of memory that several processes see. Pickled, it is the same memory in another process."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors, self.places = tensors, list[_Place]()
        end = 0
        for tensor in tensors:
            self.places.append(_Place(end, tensor.dtype, tuple(tensor.shape), isinstance(tensor, nn.Parameter)))
            end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        self.size = max(end, 1)
        self.file = _file()
        os.ftruncate(self.file.fileno(), self.size)
        self.homes = _views(self.file.fileno(), self.size, self.places)
        self.gather()

    @torch.no_grad()
    def gather(self) -> None:
        """Move tensors that are elsewhere here."""
        for tensor, home in zip(self.tensors, self.homes, strict=True):
            if tensor.data_ptr() != home.data_ptr():
                home.copy_(tensor)
                tensor.data = home

    def __reduce__(self) -> Any:
        return _opened, (reduction.DupFd(self.file.fileno()), self.size, self.places)


@dataclass(frozen=True)
class _Place:
    """Where a tensor begins in the memory, in bytes, and what it is."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    parameter: bool


def _file() -> Any:
    """A file without a name, in memory where the system can; unlike /dev/shm this has no limit of its own."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("coevolve"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _views(file: int, size: int, places: Sequence[_Place]) -> list[Tensor]:
    whole = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
    views = []
    for place in places:
        bytes_ = torch.Size(place.shape).numel() * place.dtype.itemsize
        views.append(whole[place.start : place.start + bytes_].view(place.dtype).view(place.shape))
    return views


def _opened(handle: Any, size: int, places: Sequence[_Place]) -> list[Tensor]:
    """The tensors of a ``_Memory``, in another process."""
    file = handle.detach()
    views = _views(file, size, places)
    os.close(file)
    return [
        nn.Parameter(view, requires_grad=False) if place.parameter else view
        for view, place in zip(views, places, strict=True)
    ]


class _Pickler(pickle.Pickler):
    """Pickles everything but tensors, of which it only writes the number."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[int, Tensor] = {}
        self.numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in (Tensor, nn.Parameter):
            return None
        self.tensors.setdefault(id(obj), obj)
        return self.numbers.setdefault(id(obj), len(self.numbers))


class _Unpickler(pickle.Unpickler):
    def __init__(self, policies: bytes, tensors: Sequence[Tensor]) -> None:
        super().__init__(io.BytesIO(policies))
        self.tensors = tensors

    def persistent_load(self, pid: int) -> Tensor:
        return self.tensors[pid]


def _speaker(policy: LocalPolicy) -> LocalPolicy:
    """The policy without what only learning and text need."""
    bare = copy.copy(policy)
    bare.tokenizer = bare.reference = bare.value_head = bare.optimizer = None
    bare.parameters = []
    return bare


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Processes started in here do not import the user's script, and leave Ctrl-C to this one."""
    resource_tracker.ensure_running()  # its own start would unblock the signal
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        sys.modules["__main__"] = main


def _end(running: list[_Worker]) -> None:
    while running:
        worker = running.pop()
        worker.connection.close()
        worker.process.terminate()
        worker.process.join()


def _serve(connection: Connection, tensors: Sequence[Tensor], policies: bytes, work: Work) -> None:
    """A worker's life: answer jobs until the other end is gone."""
    speakers: Mapping[PolicyName, LocalPolicy] = _Unpickler(policies, tensors).load()
    with suppress(EOFError, OSError):  # the other end is gone
        while True:
            job, threads = connection.recv()
            if threads != torch.get_num_threads():
                torch.set_num_threads(threads)
            try:
                answer: tuple[Any, str | None] = work(speakers, job), None
            except Exception:  # noqa: BLE001 (the other end raises it)
                answer = None, traceback.format_exc()
            connection.send(answer)
