"""Processes in which policies on the CPU work side by side.

Sampling and learning are many small operations, between which Python thinks and threads wait for each other; so threads
gain little and processes much. Every process holds all policies, but not their weights: these move, once, into memory
that all processes see, where the optimiser changes them and checkpoints restore them in place. So nothing is sent but
ids and a few numbers per token.

Processes are spawned (a fork would inherit the locks of PyTorch's threads) and do not import the user's script, which
therefore needs no ``if __name__ == "__main__"``. They end with the ``Workers`` they belong to, or with this process.
"""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
from torch import Tensor

from coevolve.policies.memory import Memory, Pickler, Unpickler
from coevolve.policies.policy import LocalPolicy
from coevolve.types import PolicyName

_WHY: dict[int, str] = {
    signal.SIGKILL: "killed, perhaps for want of memory",
    signal.SIGTERM: "stopped, because another one failed",
}


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class There:
    """What a process works with. rooms: for the gradients of each policy that learns, one per process of its.

    kept: what one job leaves for the next.
    """

    policies: Mapping[PolicyName, LocalPolicy]
    rooms: Mapping[PolicyName, Sequence[Tensor]]
    kept: Any = None


@dataclass(frozen=True, slots=True)
class Job:
    """``work(there, *given)`` in a process. names: whose work it is, as errors tell."""

    names: Sequence[PolicyName]
    work: Callable[..., Any]
    given: tuple[Any, ...]


class Workers:
    """Processes, at most so many and started when they are needed, that work for these policies, all on the CPU.

    Those that work at the same time share the threads that PyTorch uses here; each has at least one. share: processes
    of each policy that learns. rooms: see ``There``; in memory that all processes see.
    """

    def __init__(self, policies: Mapping[PolicyName, LocalPolicy], most: int) -> None:
        self.policies, self.most = policies, most
        learners = {name: policy for name, policy in policies.items() if policy.trainable}
        self.share = max(1, most // max(1, len(learners)))
        self._beside = min(len(learners), most // self.share)  # policies that learn at the same time
        self.rooms = {name: [_room(policy) for _ in range(self.share)] for name, policy in learners.items()}
        self._memory: Memory | None = None
        self._there = b""
        self._running: list[Worker] = []
        self._free = queue.SimpleQueue[Worker]()
        self._starting = threading.Lock()
        weakref.finalize(self, _end, self._running)

    def __call__(self, jobs: Sequence[Job]) -> list[Any]:
        """What is found for every job, each done by one process. An error or interrupt ends the processes.

        Raises RuntimeError naming the policies whose process failed or died.
        """
        found: dict[int, Any] = {}
        count = min(self.most, len(jobs))
        threads = max(1, torch.get_num_threads() // count)
        try:
            self._ready(count)
            waiting, free, busy = [*enumerate(jobs)], self._running[:count], dict[Any, tuple[int, Worker]]()
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

    @contextmanager
    def lent(self) -> Iterator[Callable[[Sequence[Job]], list[Any]]]:
        """As many processes as are one policy's share, to be asked again and again; the same one does job i each time.

        Waits while other threads have them. Asking raises as a call does; only a lost process ends the others.
        """
        with self._starting:
            self._ready(self.share * self._beside)
            free = self._free
        mine = [free.get() for _ in range(self.share)]
        try:
            yield lambda jobs: self._ask(mine[: len(jobs)], jobs)
        finally:
            for worker in mine:
                free.put(worker)

    def _ask(self, workers: Sequence[Worker], jobs: Sequence[Job]) -> list[Any]:
        """One job each."""
        threads = max(1, torch.get_num_threads() // (len(jobs) * self._beside))
        answers, failed = [], list[JobError]()
        try:
            for worker, job in zip(workers, jobs, strict=True):
                worker.ask(job, threads)
            for worker in workers:
                try:
                    answers.append(worker.answer())
                except JobError as error:  # the others' answers have to be read all the same
                    failed.append(error)
        except BaseException:
            self.close()
            raise
        if failed:
            raise failed[0]
        return answers

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
                    self._running.append(Worker(self._memory, self._there))
            self._free = queue.SimpleQueue()
            for worker in self._running[: self.share * self._beside]:
                self._free.put(worker)

    def _share(self) -> None:
        """Move the weights into memory that all processes see."""
        file = io.BytesIO()
        pickler = Pickler(file)
        try:
            pickler.dump(There({name: _bare(policy) for name, policy in self.policies.items()}, self.rooms))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            names = ", ".join(self.policies)
            raise ValueError(f"policies {names} cannot be in other processes: {error}; set workers to false") from error
        self._memory, self._there = Memory(list(pickler.tensors.values())), file.getvalue()


class JobError(RuntimeError):
    """A job's own error; its process goes on."""


class Worker:
    """This process's end of one worker."""

    def __init__(self, memory: Memory, there: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.names: Sequence[PolicyName] = []
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, memory, there), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, job: Job, threads: int) -> None:
        """Hand over a job to be done with so many threads."""
        self.names = job.names
        try:
            # Not connection.send, for which PyTorch would move every tensor into a file of its own.
            self.connection.send_bytes(pickle.dumps((job, threads)))
        except OSError as error:
            raise self._died() from error

    def answer(self) -> Any:
        """What it found."""
        try:
            found, error = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as lost:
            raise self._died() from lost
        if error is not None:
            raise JobError(f"the process that worked for {', '.join(self.names)} failed:\n{error}")
        return found

    def _died(self) -> RuntimeError:
        self.process.join(5)
        code = self.process.exitcode
        why = _WHY.get(-(code or 0), "its own output says why")
        return RuntimeError(
            f"the process that works for {', '.join(self.names)} ended with exit code {code} ({why}); "
            "workers: false does without processes"
        )


def _bare(policy: LocalPolicy) -> LocalPolicy:
    """The policy without what only the optimiser and text need."""
    bare = copy.copy(policy)
    bare.tokenizer = bare.optimizer = bare.away = None
    return bare


def _room(policy: LocalPolicy) -> Tensor:
    """For the gradients of all its parameters, one behind the other."""
    return torch.zeros(sum(parameter.numel() for parameter in policy.parameters), dtype=torch.float32)


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


def _end(running: list[Worker]) -> None:
    while running:
        worker = running.pop()
        worker.connection.close()
        worker.process.terminate()
        worker.process.join()


def _serve(connection: Connection, tensors: Sequence[Tensor], there: bytes) -> None:
    """A worker's life: do jobs until the other end is gone."""
    here: There = Unpickler(there, tensors).load()
    with suppress(EOFError, OSError):  # the other end is gone
        while True:
            job, threads = pickle.loads(connection.recv_bytes())
            if threads != torch.get_num_threads():
                torch.set_num_threads(threads)
            try:
                answer: tuple[Any, str | None] = job.work(here, *job.given), None
            except Exception:  # noqa: BLE001 (the other end raises it)
                answer = None, traceback.format_exc()
            connection.send_bytes(pickle.dumps(answer))
