"""The sandbox as the trainer sees it: programs in, verdicts out."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import cache

from coevolve.rewards.sandbox.isolation import Isolation, Level, choose
from coevolve.rewards.sandbox.split import split
from coevolve.rewards.sandbox.types import Program, Verdict
from coevolve.rewards.sandbox.worker import Limits, MachineFullError, Worker

CACHED = 8192
"""Programs whose verdicts a sandbox remembers."""

_OF_THE_MACHINE = ("timeout", "crashed")
"""Kinds that may be the fault of a busy or full machine: another try may end otherwise."""


class Sandbox:
    """Judges untrusted programs. Processes start at first use; may be used from any thread.

    isolation: "bubblewrap", "plain", or "auto", the strongest that works here. timeout: seconds for loading the code,
    and for each test. program_timeout: seconds for all of a program, by default three times as much. memory_mb: address
    space of a process. workers: cases at a time, one a processor by default. stop_at_failure: tests behind the first
    that does not pass are "skipped". ValueError: a setting is wrong, or what it needs is missing.
    """

    def __init__(
        self,
        *,
        isolation: str = "auto",
        timeout: float = 10.0,
        memory_mb: int = 512,
        workers: int | None = None,
        program_timeout: float | None = None,
        stop_at_failure: bool = False,
    ) -> None:
        for name, value in (
            ("timeout", timeout),
            ("memory_mb", memory_mb),
            ("workers", workers),
            ("program_timeout", program_timeout),
        ):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"sandbox {name} is {value}; it is a number above 0")
        self._limits = Limits(float(timeout), int(memory_mb), program_timeout, stop_at_failure)
        self._chosen = choose(isolation, _try)
        self._workers = workers or _processors()
        self._cache: OrderedDict[Program, tuple[Verdict, ...]] = OrderedDict()
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._started: list[Worker] = []
        weakref.finalize(self, _end, self._started)  # with the last reference, or with the process

    @property
    def isolation(self) -> str:
        """The level that was chosen."""
        return self._chosen.level

    @property
    def description(self) -> str:
        """A line: the level, its layers, and what it cannot stop."""
        return str(self._chosen)

    def run(self, programs: Sequence[Program]) -> list[tuple[Verdict, ...]]:
        """A verdict for each test of each program, in order.

        ValueError: tests do not parse or have an assert that never runs, or a prelude does not run. OSError: the
        machine has no process or thread left.
        """
        for program in programs:
            split(program.tests)
        if os.getpid() != self._owner:  # a fork: the threads and processes are the other one's
            self._begin()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._workers, "sandbox")
            pool = self._pool
            known = {program: self._cache[program] for program in programs if program in self._cache}
            fresh = [program for program in dict.fromkeys(programs) if program not in known]
        try:
            found = dict(zip(fresh, pool.map(self._one, fresh), strict=True))
        except RuntimeError as error:
            if "can't start new thread" not in str(error):
                raise
            raise MachineFullError from error
        except CancelledError:
            raise ValueError("the sandbox was closed while it ran programs; close it when all is done") from None
        told = known | found
        with self._lock:
            for program, verdicts in told.items():  # another thread may have dropped what was known
                if not any(verdict.kind in _OF_THE_MACHINE for verdict in verdicts):
                    self._cache[program] = verdicts
                    self._cache.move_to_end(program)
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        return [told[program] for program in programs]

    def close(self) -> None:
        """End the processes; the next ``run`` starts others."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        _end(self._started)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _one(self, program: Program) -> tuple[Verdict, ...]:
        plan = split(program.tests)
        if not plan.steps:
            return ()
        worker: Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = Worker(self._chosen, self._limits)
            self._started.append(worker)
        return worker.run(program, plan)


def _end(workers: list[Worker]) -> None:
    while workers:
        workers.pop().close()


def _processors() -> int:
    """As ``runtime.cores`` counts them; the sandbox imports nothing of ours but itself, so that it can stand alone."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def offers(level: Level) -> str:
    """A line on one level: its layers and what it cannot stop, or why it does not work here."""
    try:
        return str(choose(level, _try))
    except (ValueError, OSError) as error:
        return f"{level}: {error}"


@cache
def _try(isolation: Isolation) -> str:
    """What goes wrong with the simplest case; "" if nothing does."""
    worker = Worker(isolation, Limits(timeout=10.0, memory_mb=512))
    try:
        verdicts = worker.run(
            Program("def f(x):\n    return x + 1", "assert f(1) == 2", "f"), split("assert f(1) == 2")
        )
    except MachineFullError:  # says nothing of the level
        raise
    except OSError as error:
        return str(error)
    finally:
        worker.close()
    return "" if verdicts[0].kind == "passed" else f"a simple case ends {verdicts[0]}"
