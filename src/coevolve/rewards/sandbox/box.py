"""The sandbox's interface for the trainer: programs in, verdicts out."""

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
from coevolve.rewards.sandbox.worker import LACKS, Limits, MachineFullError, Worker

CACHED = 8192
"""Most programs whose verdicts a sandbox caches."""

_NO_THREAD = "can't start new thread"
"""Python's message where a thread is refused: the machine, or the user's other programs, may have left none."""


class Sandbox:
    """A sandbox that judges untrusted programs. Processes start at first use; it may be used from any thread.

    isolation: "bubblewrap", "plain", or "auto", the strongest that works on this machine. timeout: seconds for loading
    the code, and for each test. program_timeout: seconds for a whole program, by default three times ``timeout``.
    memory_mb: address space of each process. workers: programs judged at a time, by default one per processor.
    stop_at_failure: tests after the first that does not pass are "skipped". Raises ValueError if a setting is wrong, or
    its requirements are missing.
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
        weakref.finalize(self, _end, self._started)  # at the last reference or the process's end

    @property
    def isolation(self) -> str:
        """The isolation level that was chosen."""
        return self._chosen.level

    @property
    def description(self) -> str:
        """The isolation in one line: the level, its layers, and what it cannot stop."""
        return str(self._chosen)

    def run(self, programs: Sequence[Program]) -> list[tuple[Verdict, ...]]:
        """Return a verdict for each test of each program, in order.

        Raises ValueError if tests do not parse or have an assert that never runs, or if a prelude does not run; OSError
        if the servers do not start or the machine has no process or thread left.
        """
        for program in programs:
            split(program.tests)
        if os.getpid() != self._owner:  # after a fork: threads and workers are the parent's
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
            if _NO_THREAD not in str(error):
                raise
            raise MachineFullError from error
        except CancelledError:
            raise ValueError("the sandbox was closed while it ran programs; close it when all is done") from None
        told = known | found
        with self._lock:
            for program, verdicts in told.items():  # a verdict read above may have been evicted since
                if not any(map(_is_of_the_machine, verdicts)):
                    self._cache[program] = verdicts
                    self._cache.move_to_end(program)
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        return [told[program] for program in programs]

    def close(self) -> None:
        """End the sandbox's processes; the next ``run`` starts others."""
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


def _is_of_the_machine(verdict: Verdict) -> bool:
    """Return whether a busy or full machine may have caused a verdict: it is not cached, as another run may end
    otherwise."""
    return verdict.kind in ("timeout", "crashed") or _NO_THREAD in verdict.message


def _end(workers: list[Worker]) -> None:
    while workers:
        workers.pop().close()


def _processors() -> int:
    """Return the number of processors that this process may run on; counted here because the sandbox imports nothing
    else of Coevolve, so that it can stand alone."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def offers(level: Level) -> str:
    """Describe one level in a line: its layers and what it cannot stop, or why it does not work on this machine."""
    try:
        return str(choose(level, _try))
    except (ValueError, OSError) as error:
        return f"{level}: {error}"


@cache
def _try(isolation: Isolation) -> str:
    """Run a trivial program at this isolation and return what goes wrong; "" if nothing does."""
    worker = Worker(isolation, Limits(timeout=10.0, memory_mb=512))
    try:
        verdicts = worker.run(
            Program("def f(x):\n    return x + 1", "assert f(1) == 2", "f"), split("assert f(1) == 2")
        )
    except MachineFullError:  # not caused by the isolation level
        raise
    except OSError as error:
        if error.errno in LACKS:
            raise
        return str(error)
    finally:
        worker.close()
    return "" if verdicts[0].kind == "passed" else f"a simple case ends {verdicts[0]}"
