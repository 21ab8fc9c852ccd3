"""A pool of worker processes in which policies on the CPU sample and learn side by side.

Sampling and learning are many small operations with Python's overhead and synchronisation of threads between them, so
more threads gain little and more processes much. Every process holds all policies, but not their weights: these are
moved, once, into shared memory, where the optimiser changes them and checkpoints restore them in place. So only token
ids and a few numbers per token are sent.

Processes are spawned (a fork would inherit the locks of PyTorch's threads) and do not import the user's script, which
therefore needs no ``if __name__ == "__main__"``. They end with the ``Pool`` they belong to, or with this process.
"""

from __future__ import annotations

import ctypes
import io
import multiprocessing
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
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor, nn

from coevolve.faults import ShortageError, lacking, raised
from coevolve.late import collector_off
from coevolve.runtime.beside import Beside
from coevolve.runtime.placement import Threads
from coevolve.runtime.shared_memory import Opened, Pickler, SharedMemory, Unpickler
from coevolve.types import PolicyName

LEARNERS_AT_ONCE = 2
"""Policies that learn at the same time: while this process computes the loss and the optimizer step of one, the worker
processes compute for the other. More would only take memory."""


class PooledPolicy(Protocol):
    """A policy that a pool computes for. bare: the part of it that the worker processes need."""

    name: PolicyName
    trainable: bool
    parameters: list[nn.Parameter]

    def bare(self) -> Any: ...


@dataclass(frozen=True)
class Buffers:
    """Memory for the gradients of policies: float32 tensors.

    own: one for each policy that learns. more: further ones for each of the policies that learn at the same time, one
    for every process but one, as long as the longest of own.
    """

    own: Mapping[PolicyName, Tensor] = field(default_factory=dict)
    more: Sequence[Sequence[Tensor]] = ()

    def of(self, name: PolicyName, seat: int) -> list[Tensor]:
        """Return one buffer for each process that learns for this policy."""
        own = self.own[name]
        return [own, *(buffer[: len(own)] for buffer in self.more[seat])]

    @classmethod
    def needed(cls, lengths: Mapping[PolicyName, int], processes: int) -> Buffers:
        """Return buffers for policies with these numbers of parameters, without memory yet (device meta)."""
        longest = max(lengths.values(), default=0)
        return cls(
            {name: torch.empty(length, device="meta") for name, length in lengths.items()},
            [[torch.empty(longest, device="meta") for _ in range(processes - 1)] for _ in range(LEARNERS_AT_ONCE)],
        )

    def where(self, views: Callable[[Tensor], Tensor]) -> Buffers:
        """Return these buffers with each tensor replaced by ``views(tensor)``, as by its view in shared memory."""
        own = {name: views(buffer) for name, buffer in self.own.items()}
        return Buffers(own, [[views(buffer) for buffer in some] for some in self.more])


@dataclass
class WorkerState:
    """The state of a worker process. outputs: by policy, what one of its jobs keeps for the next one."""

    policies: Mapping[PolicyName, Any]
    buffers: Buffers
    outputs: dict[PolicyName, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A call of ``work(state, *given)`` in a worker process. names: the policies that it works for, for errors."""

    names: Sequence[PolicyName]
    work: Callable[..., Any]
    given: tuple[Any, ...]


class Pool:
    """At most ``most`` worker processes, started when needed, that compute for the pool's policies, all on the CPU.

    Processes that work at the same time share this process's number of threads; each has at least one. buffers: the
    gradients, in memory that all processes see once some have started.
    """

    def __init__(self, most: int) -> None:
        self.policies: dict[PolicyName, PooledPolicy] = {}
        self.most = most
        self.buffers = Buffers()
        self._memory: SharedMemory | None = None
        self._state = b""
        self._running: list[Worker] = []
        self._generation = 0  # counts how often the processes were started anew
        self._losses = 0
        self._lock = threading.RLock()
        self._seats = queue.LifoQueue[int]()  # LIFO: a policy that learns alone always gets the same seat
        for seat in reversed(range(LEARNERS_AT_ONCE)):
            self._seats.put(seat)
        self._width = 1  # number of processes that the share with seat 0 used last
        self._cause: BaseException | None = None  # why the processes were last ended
        weakref.finalize(self, _end, self._running)

    def add(self, policy: PooledPolicy) -> None:
        """Add a policy; only before any process has started."""
        assert not self._running, "a pool's policies are all there before it starts"
        self.policies[policy.name] = policy

    @property
    def learners(self) -> list[PolicyName]:
        """The policies that learn."""
        return [name for name, policy in self.policies.items() if policy.trainable]

    def __call__(self, jobs: Sequence[Job]) -> list[Any]:
        """Run every job in one process and return their results. An error or interrupt ends the processes.

        Raises, naming the policies, JobError, ValueError or OSError if a job failed (ShortageError if the machine
        lacked something), and ShortageError if its process died.
        """
        found: dict[int, Any] = {}
        count = min(self.most, len(jobs))
        threads = Threads.share(count)
        busy = dict[Any, tuple[int, Worker]]()
        try:
            self._ready(count)
            waiting, free = [*enumerate(jobs)], self._running[:count]
            while waiting or busy:
                while waiting and free:
                    if not free[0].lock.acquire(blocking=not busy):  # its holder may wait for a process busy here
                        break
                    (number, job), worker = waiting.pop(0), free.pop(0)
                    busy[worker.connection] = number, worker
                    worker.ask(job, threads)
                answered = wait(list(busy), _LOOK)
                for _, worker in busy.values() if not answered else ():
                    worker.look()
                for connection in answered:
                    number, worker = busy[connection]
                    found[number] = worker.answer()
                    del busy[connection]
                    worker.lock.release()
                    free.append(worker)
        except BaseException:
            self.close()  # else a later call would read the answers to this one
            raise
        finally:
            for _, worker in busy.values():
                worker.lock.release()
        return [found[number] for number in range(len(jobs))]

    @contextmanager
    def shared(self) -> Iterator[Share]:
        """Yield a share of the processes for repeated jobs of one policy. A second policy may have one at the same
        time; a third one waits. Raises ShortageError if the processes were lost while it waited."""
        losses = self._losses
        seat = self._seats.get()
        try:
            with self._lock:
                if self._losses != losses:
                    raise ShortageError(str(self._cause or _ENDED))
                self._ready(1)
                yielded = Share(self, seat, self._generation)
            yield yielded
        finally:
            self._seats.put(seat)

    def _workers(self, share: Share, count: int) -> list[tuple[int, Worker]]:
        """Return the processes, with their numbers, for the jobs of one share; start them if need be."""
        with self._lock:
            if not self._running or self._generation != share.generation:  # ended because another share failed
                raise ShortageError(str(self._cause or _ENDED))
            if share.first is None:
                share.first = 0 if share.seat == 0 else max(0, min(self._width, self.most - count))
            if share.seat == 0:
                self._width = count
            numbers = [(share.first + i) % self.most for i in range(count)]
            self._ready(max(numbers) + 1)
            return [(number, self._running[number]) for number in numbers]

    def _ask(self, workers: Sequence[tuple[int, Worker]], jobs: Sequence[Job]) -> list[Any]:
        """Run one job in each of these processes. All callers lock processes in the same order, so none deadlock."""
        threads = Threads.share(len(jobs) * min(LEARNERS_AT_ONCE, max(1, len(self.learners))))
        order = sorted(range(len(jobs)), key=lambda i: workers[i][0])
        answers, failed, asked = dict[int, Any](), list[Exception](), list[Worker]()
        try:
            for i in order:
                worker = workers[i][1]
                worker.lock.acquire()
                asked.append(worker)
                worker.ask(jobs[i], threads)
            for i in order:
                worker = workers[i][1]
                try:
                    answers[i] = worker.answer()
                except (JobError, ValueError) as error:  # the other answers have to be read all the same
                    failed.append(error)
                asked.remove(worker)
                worker.lock.release()
        except BaseException as error:
            cause = self._lost([worker for _, worker in workers], error)
            if cause is error:
                raise
            raise ShortageError(str(cause)) from error
        finally:
            for worker in asked:
                worker.lock.release()
        if failed:
            raise failed[0]
        return [answers[i] for i in range(len(jobs))]

    def _lost(self, workers: Sequence[Worker], error: BaseException) -> BaseException:
        """End all processes unless these were ended already; return the reason, which may be another thread's error."""
        with self._lock:
            for worker in workers:
                if worker.ended is not None:
                    return worker.ended
            for worker in self._running:
                worker.ended = error
            self._cause, self._losses = error, self._losses + 1
            _end(self._running)
            return error

    def close(self) -> None:
        """End the processes; the next call starts others."""
        with self._lock:
            self._cause = None
            _end(self._running)

    def _ready(self, count: int) -> None:
        """Ensure that at least ``count`` processes run, and that all see the current weights."""
        with self._lock:
            if self._memory is not None and self._running:
                self._memory.gather()
            else:
                self._move_weights()
                self._generation += 1
            assert self._memory is not None
            if len(self._running) < count:
                with quiet_start():
                    while len(self._running) < count:
                        self._running.append(Worker(self._memory, self._state))

    def _move_weights(self) -> None:
        """Move the weights into memory that all processes share, and allocate buffers for gradients there."""
        file = io.BytesIO()
        pickler = Pickler(file)
        lengths = {name: sum(p.numel() for p in self.policies[name].parameters) for name in self.learners}
        needed = Buffers.needed(lengths, self.most)
        try:
            pickler.dump(WorkerState({name: policy.bare() for name, policy in self.policies.items()}, needed))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            names = ", ".join(self.policies)
            raise ValueError(f"policies {names} cannot be in other processes: {error}; set workers to false") from error
        self._memory = SharedMemory(list(pickler.tensors.values()))
        self._state = pickle.dumps((self._memory.places, file.getvalue()))  # one for all processes, as it may be large
        views = self._memory.views
        self.buffers = needed.where(lambda buffer: views[pickler.numbers[id(buffer)]])


@dataclass
class Share:
    """A pool's processes as one policy uses them, for at most ``most`` jobs at a time: job i is always run by the same
    process.

    A call raises as ``Pool.__call__`` does, but a JobError or ValueError of a job leaves the processes running; all
    else (a lost process, a job without enough memory, an interrupt) ends them. seat: the number of this policy among
    those that learn at the same time. first: the number of the process that runs job 0, set by the first call.
    """

    pool: Pool
    seat: int
    generation: int
    first: int | None = None

    def __call__(self, jobs: Sequence[Job]) -> list[Any]:
        assert len(jobs) <= self.pool.most
        return self.pool._ask(self.pool._workers(self, len(jobs)), jobs)


_ENDED = "the worker processes were ended"

_LOOK, _LOOKS = 10.0, 60
"""Seconds between two looks at a process that does not answer, and after how many of them without any processor time in
between it is given up. Time in which this process did not run either (a laptop that sleeps) does not count."""


class JobError(RuntimeError):
    """An error that a job raised; its process goes on."""


@dataclass(frozen=True)
class Failure:
    """A job's error in a form that can be pickled, as many errors cannot. kind: the class that the receiver raises."""

    kind: type[Exception]
    said: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        trace = traceback.format_exc()
        if line := lacking(error):
            return cls(ShortageError, line, trace)
        if isinstance(error, ValueError):  # its message is meant for users
            return cls(ValueError, str(error), trace)
        if isinstance(error, OSError):  # of the machine, as a folder that cannot be written
            return cls(OSError, raised(error), trace)
        return cls(JobError, raised(error), trace)

    def told(self, where: str) -> Exception:
        """Return the error with ``where`` before its message."""
        return self._noted(f"{where}: {self.said}")

    def alone(self) -> Exception:
        """Return the error with its own message alone."""
        return self._noted(self.said)

    def _noted(self, said: str) -> Exception:
        error = self.kind(said)
        error.add_note(self.trace)  # a traceback shows it
        return error


class Worker:
    """One worker process, as seen from this process."""

    def __init__(self, memory: SharedMemory, state: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.names: Sequence[PolicyName] = []
        self.lock = threading.Lock()
        """Held by the caller from its request until the answer is read."""
        self.looks, self.used = 0, 0.0
        """Looks without new processor time, and the seconds of it at the last one."""
        self.ended: BaseException | None = None
        """The error for which the pool ended this process, if any."""
        # Few bytes: start() writes them to a pipe whose other end this process holds too, so that if they are more than
        # the pipe takes and the new process dies, start() waits for ever.
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, memory), daemon=True)
        self.process.start()
        theirs.close()
        self._state = _Sending(self.connection, state)

    def ask(self, job: Job, threads: Threads) -> None:
        """Send a job, to be run with this number of threads. Raises ShortageError if the process died or hangs."""
        self.names, self.looks = job.names, 0
        self._wait(self._state)
        # Not connection.send, for which PyTorch would move every tensor into a file of its own.
        self._wait(_Sending(self.connection, pickle.dumps((job, threads))))

    def _wait(self, sending: _Sending) -> None:
        while not sending.over(_LOOK):
            self.look()
        if sending.failed is not None:
            raise self._died() from sending.failed

    def answer(self) -> Any:
        """Return the job's result. Raises the error of its ``Failure``, and ShortageError if the process died or
        hangs."""
        reading = Beside(self.connection.recv_bytes)  # as the process may stop while it sends
        while not reading.ended.wait(_LOOK):
            self.look()
        try:
            found, error = pickle.loads(reading.found(0.0, ""))
        except (EOFError, OSError) as lost:
            raise self._died() from lost
        if error is not None:
            raise error.told(f"the process that worked for {', '.join(self.names)} failed")
        return found

    def look(self) -> None:
        """Look at a process that has not answered. Raises ShortageError if it has done nothing for ``_LOOKS`` looks."""
        with suppress(psutil.NoSuchProcess):  # the next read tells so
            used = sum(psutil.Process(self.process.pid).cpu_times()[:2])  # user, system
            self.looks, self.used = (self.looks + 1 if used == self.used else 0), used
        if self.looks >= _LOOKS:
            raise ShortageError(
                f"the process {self.process.pid}, which works for {', '.join(self.names)}, has not answered, and used "
                f"no processor time for {_LOOK * _LOOKS:.0f} s: it hangs, or was stopped; workers: false does without "
                "processes"
            )

    def _died(self) -> ShortageError:
        self.process.join(5)
        code = self.process.exitcode
        why = "killed, perhaps for want of memory" if code == -signal.SIGKILL else "its own output says why"
        return ShortageError(
            f"the process that works for {', '.join(self.names)} ended with exit code {code} ({why}); "
            "workers: false does without processes"
        )


class _Sending(threading.Thread):
    """A message on its way, by a thread: a process that stands still would never take a large one."""

    def __init__(self, connection: Connection, message: bytes) -> None:
        super().__init__(daemon=True)
        self.connection, self.message = connection, message
        self.failed: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.connection.send_bytes(self.message)
        except OSError as error:
            self.failed = error

    def over(self, seconds: float) -> bool:
        """Return whether the message is sent, or failed, after at most these seconds."""
        self.join(seconds)
        return not self.is_alive()


@contextmanager
def quiet_start() -> Iterator[None]:
    """Within this context, started processes do not import the user's script, and ignore Ctrl-C."""
    resource_tracker.ensure_running()  # its own start would unblock the signal
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        sys.modules["__main__"] = main


def _end(running: list[Worker]) -> None:
    ended = [running.pop() for _ in range(len(running))]  # connections stay open: another thread may read from one
    for worker in ended:
        worker.process.terminate()
    for worker in ended:
        worker.process.join(5)
        worker.process.kill()  # if it is stopped, it takes no other signal
        worker.process.join()


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h: how much free memory there must be before it is returned, -1 for never;
how many large blocks may be mapped from the kernel one by one."""


def _keep_memory() -> None:
    """Keep the memory that this process frees, where the C library has this setting: the kernel clears newly mapped
    memory, which takes longer than filling it.

    The process then holds its peak of memory, and fragments. Only for workers: the user's process is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_MMAP_MAX, 0)


def _serve(connection: Connection, memory: Opened) -> None:
    """Run the jobs that a worker receives after its state, until the other end of the connection is gone."""
    _keep_memory()
    try:
        places, state = pickle.loads(connection.recv_bytes())
    except (EOFError, OSError):  # the other end is gone
        return
    with collector_off():
        here: WorkerState = Unpickler(state, memory.tensors(places)).load()
    with suppress(EOFError, OSError):  # the other end is gone
        while True:
            job, threads = pickle.loads(connection.recv_bytes())
            threads.use()
            try:
                answer: tuple[Any, Failure | None] = job.work(here, *job.given), None
            except BaseException as error:  # noqa: BLE001 (the other end raises it)
                answer = None, Failure.of(error)
            connection.send_bytes(pickle.dumps(answer))
