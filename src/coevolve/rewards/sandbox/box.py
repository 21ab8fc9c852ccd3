"""The sandbox as the trainer sees it: programs in, verdicts out."""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from coevolve.rewards.sandbox.inside.split import split
from coevolve.rewards.sandbox.types import Program, Verdict
from coevolve.rewards.sandbox.worker import Worker

CACHED = 8192
"""Programs whose verdicts a sandbox remembers."""


@lru_cache(maxsize=4096)
def sources(tests: str) -> tuple[str, ...]:
    """The source of each test. ValueError: they do not parse."""
    return tuple(step.source for step in split(tests).steps)


def count_tests(tests: str) -> int:
    """How many verdicts these tests give. ValueError: they do not parse."""
    return len(sources(tests))


class Sandbox:
    """Judges untrusted programs. Processes start at first use; may be used from any thread.

    isolation: "bubblewrap", "plain", or "auto", the strongest that works here. timeout: seconds for loading the code,
    and for each test; all tests of a program have three times as much. memory_mb: address space of a process.
    workers: cases at a time, one a processor by default. ValueError: a setting is wrong, or what it needs is missing.
    """

    def __init__(
        self,
        *,
        isolation: str = "auto",
        timeout: float = 10.0,
        memory_mb: int = 512,
        workers: int | None = None,
    ) -> None:
        self.timeout, self.memory_mb = timeout, memory_mb
        self.isolation = isolation
        self.workers = workers or len(os.sched_getaffinity(0))
        self._cache: OrderedDict[Program, tuple[Verdict, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._started: list[Worker] = []

    def run(self, programs: Sequence[Program]) -> list[tuple[Verdict, ...]]:
        """A verdict for each test of each program, in order.

        ValueError: tests do not parse, or a prelude does not run.
        """
        for program in programs:
            sources(program.tests)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.workers, "sandbox")
                atexit.register(self.close)
            pool = self._pool
            fresh = [program for program in dict.fromkeys(programs) if program not in self._cache]
        found = dict(zip(fresh, pool.map(self._one, fresh), strict=True))
        with self._lock:
            self._cache |= found
            result = [self._cache[program] for program in programs]
            for program in programs:
                self._cache.move_to_end(program)
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        return result

    def close(self) -> None:
        """End the processes; the next ``run`` starts others."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
            atexit.unregister(self.close)
        for worker in self._started:
            worker.close()
        self._started.clear()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _one(self, program: Program) -> tuple[Verdict, ...]:
        tests = sources(program.tests)
        if not tests:
            return ()
        worker: Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = Worker(self.memory_mb)
            self._started.append(worker)
        return worker.run(program, tests, self.timeout)
