"""Placement of the policies' work: devices in parallel, the number of worker processes, the number of threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from coevolve.models.spec import PolicySpec
from coevolve.runtime.cores import cores, quota
from coevolve.settings import Workers
from coevolve.types import Algorithm, PolicyName, Sampling

PAYS = 1e10
"""Floating-point operations of a step from which worker processes pay off: they take seconds and memory to start, which
steps of a few hundredths of a second do not win back."""

FEW_CORES = 2
"""The number of cores up to which one thread of the compiled loops is as fast as all of PyTorch's threads for a large
model: 8 rows by 1536 x 8960 took 2.74 ms on a Xeon, and in PyTorch 5.33 ms with one thread and 2.75 with two; on a Zen
3, which has no instructions for bfloat16, 16 rows took 6.6 ms, and 22.6 in PyTorch with two threads. On more cores
neither was measured."""

P = TypeVar("P")
T = TypeVar("T")

_THREADS = 64
"""The number of threads that PyTorch may have on any machine; more only if there are cores for them."""


def set_threads(count: int) -> None:
    """Have PyTorch compute with ``count`` threads. Raises ValueError as ``check_threads`` does."""
    check_threads(count)
    torch.set_num_threads(count)


def check_threads(count: int) -> None:
    """Raise ValueError for more threads than this machine can use: if threads cannot be started, the process ends
    without an error message."""
    most = max(_THREADS, cores())
    if not 1 <= count <= most:
        raise ValueError(f"threads is {count}; want 1 to {most} on this machine of {cores()} cores")


def most_tokens(turns: int, sampling: Sampling, algorithm: Algorithm) -> int:
    """Return the most tokens that a step of so many turns learns from, each counted once an epoch."""
    return turns * sampling.length_range[1] * algorithm.objective.epochs


def processes(workers: Workers, cores: int, parameters: int, tokens: int) -> int:
    """Return the number of worker processes to start, 0 for none. parameters: of all models on the CPU. tokens: the
    most that a step has.

    A forward pass takes about two operations per parameter and token, a backward pass four. Raises ValueError for
    ``workers`` other than true, false and auto.
    """
    if workers not in (True, False, "auto"):
        raise ValueError(f"workers is {workers!r}; want true, false or auto")
    pays = 6 * parameters * tokens >= PAYS if workers == "auto" else workers
    return cores if pays and cores > 1 else 0


def keeps_copy(specs: Iterable[PolicySpec]) -> bool:
    """Return whether the compiled loops may sample the base model that these policies share, of up to
    ``decoder.MOST_KEPT`` weights, from a copy that they keep: it is held in bfloat16, no policy trains all of its
    weights, and this process has few cores."""
    held = all(spec.weights != "full" and spec.dtype == "bfloat16" and not spec.load_in_4bit for spec in specs)
    return held and cores() <= FEW_CORES


@dataclass
class _Threads:
    """The numbers of threads in this process.

    ours: PyTorch's, as last set here. before: PyTorch's before that, by its default or as the calling program set it,
    the first time within the container's quota.
    given: whether a team's ``threads`` set it. products: those for one large operation beside the compiled loops.
    """

    ours: int | None = None
    before: int = 1
    given: bool = False
    products: int = 1


_threads = _Threads()


def use_threads(threads: int | None, one: bool) -> None:
    """Have PyTorch compute with this number of threads in this process.

    None: with one thread if a backend wants that (``one``), which then divides its large operations among the number
    of threads that there were before; else with that number itself. When this is first called, that is at most the
    container's quota, which PyTorch's default does not know, unless OMP_NUM_THREADS says a number."""
    if (now := torch.get_num_threads()) != _threads.ours:  # not set here yet, or set by the program since
        by_default = _threads.ours is None and "OMP_NUM_THREADS" not in os.environ
        _threads.before = min(now, quota() or now) if by_default else now
    if threads is not None or one:
        set_threads(threads or 1)
    elif now != _threads.before:  # set for an earlier team, which does not bind this one
        torch.set_num_threads(_threads.before)
    _threads.ours = torch.get_num_threads()
    _threads.given, _threads.products = threads is not None, _threads.before if threads is None and one else 1


def use_one_thread() -> None:
    """Have PyTorch compute with one thread, as compiled loops want it; if a team's ``threads`` set the number, their
    large operations get one thread, too."""
    given = _threads.given
    use_threads(None, one=True)
    if given:
        _threads.given, _threads.products = True, 1


def product_threads() -> int:
    """Return the number of threads for one large operation, a product or attention over many tokens, beside the
    compiled loops; the results do not depend on it."""
    return _threads.products


@dataclass(frozen=True, slots=True)
class Threads:
    """The numbers of threads of a process. pytorch: for PyTorch. products: for one large operation beside the compiled
    loops."""

    pytorch: int
    products: int

    @classmethod
    def share(cls, among: int) -> Threads:
        """Return the threads for each of ``among`` processes: this process's, which waits meanwhile, divided among
        them; at least one of either kind."""
        return cls(max(1, torch.get_num_threads() // among), max(1, _threads.products // among))

    def use(self) -> None:
        """Set these numbers of threads in this process."""
        if self.pytorch != torch.get_num_threads():
            torch.set_num_threads(self.pytorch)
        _threads.products = self.products


def thread_pool(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of threads in which PyTorch uses as many threads as in this one: a new thread does not know how
    many it was told to use. name: how the threads' names begin."""
    return ThreadPoolExecutor(count, name, torch.set_num_threads, (torch.get_num_threads(),))


def beside(name: str, function: Callable[[], T]) -> Future[T]:
    """Start a function in a thread of its own, in which PyTorch uses as many threads as in this one. A process that
    ends does not wait for it."""
    found: Future[T] = Future()
    threads = torch.get_num_threads()

    def run() -> None:
        try:
            torch.set_num_threads(threads)
            found.set_result(function())
        except BaseException as error:  # noqa: BLE001 (whoever waits raises it)
            found.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return found


def side_by_side(
    policies: Mapping[PolicyName, P],
    names: Collection[PolicyName],
    work: Callable[[list[PolicyName]], Mapping[PolicyName, T]],
    place: Callable[[P], object],
) -> dict[PolicyName, T]:
    """Return the result of ``work`` for each name, in the order of the names. It is called once per place, with the
    names at that place.

    Several places are run in a thread each. If one fails, the others finish first, and the first place's error is
    raised.
    """
    by_place: dict[object, list[PolicyName]] = {}
    for name in names:
        by_place.setdefault(place(policies[name]), []).append(name)
    if len(by_place) <= 1:
        parts = [work(there) for there in by_place.values()]
    else:
        with thread_pool(len(by_place), "place") as threads:
            parts = list(threads.map(work, by_place.values()))
    found = {name: value for part in parts for name, value in part.items()}
    return {name: found[name] for name in names}
