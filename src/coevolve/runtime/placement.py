"""Where policies work: devices side by side, processes, threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from coevolve.models.spec import PolicySpec
from coevolve.runtime.cores import cores
from coevolve.settings import Workers
from coevolve.types import PolicyName

PAYS = 1e10
"""Floating-point operations of a step from which on worker processes pay: these take seconds and memory to start, which
steps of a few hundredths of a second do not earn back."""

FEW_CORES = 2
"""Up to so many, one thread of the compiled loops is as fast as all that PyTorch has for a large model: 8 rows by
1536 x 8960 took 2.74 ms on a Xeon, PyTorch's one thread 5.33 and its two 2.75; on a Zen 3, which has no instructions
for bfloat16, 16 rows took 6.6 ms and PyTorch's two threads 22.6. On more cores neither was measured."""

P = TypeVar("P")
T = TypeVar("T")

_THREADS = 64
"""So many PyTorch may have on any machine; more only where there are cores for them."""


def set_threads(count: int) -> None:
    """Let PyTorch compute with so many threads. Raises ValueError as ``check_threads``."""
    check_threads(count)
    torch.set_num_threads(count)


def check_threads(count: int) -> None:
    """Raises ValueError for more threads than this machine could use: those that it cannot start end the process
    without a word."""
    most = max(_THREADS, cores())
    if not 1 <= count <= most:
        raise ValueError(f"threads is {count}; want 1 to {most} on this machine of {cores()} cores")


def processes(workers: Workers, cores: int, parameters: int, tokens: int) -> int:
    """How many worker processes to start, 0 for none. parameters: of all models on the CPU. tokens: of a step, at most.

    A forward is about two operations a parameter and token, and its gradient four. Raises ValueError for another word.
    """
    if workers not in (True, False, "auto"):
        raise ValueError(f"workers is {workers!r}; want true, false or auto")
    pays = 6 * parameters * tokens >= PAYS if workers == "auto" else workers
    return cores if pays and cores > 1 else 0


def keeps_copy(specs: Iterable[PolicySpec]) -> bool:
    """Whether compiled loops may sample the base that these share, however large it is, from a copy that they keep: it
    is held in bfloat16, no policy trains the whole of it, and PyTorch would not have many threads for it."""
    held = all(spec.weights != "full" and spec.dtype == "bfloat16" and not spec.load_in_4bit for spec in specs)
    return held and cores() <= FEW_CORES


@dataclass
class _Threads:
    """How many threads PyTorch has in this process.

    ours: as many as were set here last. before: as many as there were, by PyTorch's default or because the program
    around us said so. given: whether a team said how many. products: of compiled loops, for large products alone.
    """

    ours: int | None = None
    before: int = 1
    given: bool = False
    products: int = 1


_threads = _Threads()


def use_threads(threads: int | None, one: bool) -> None:
    """Have PyTorch compute with so many threads in this process. None: one, where a backend wants that (``one``), which
    then shares its large products among as many as there were before this was asked for the first time; else those."""
    if (now := torch.get_num_threads()) != _threads.ours:  # nobody asked yet, or the program has said since
        _threads.before = now
    if threads is not None or one:
        set_threads(threads or 1)
    elif now != _threads.before:  # of a team before this one, which is no reason for this one's
        torch.set_num_threads(_threads.before)
    _threads.ours = torch.get_num_threads()
    _threads.given, _threads.products = threads is not None, _threads.before if threads is None and one else 1


def use_one_thread() -> None:
    """Have PyTorch compute with one thread, as compiled loops want it; large products, too, if a team said how many."""
    given = _threads.given
    use_threads(None, one=True)
    if given:
        _threads.given, _threads.products = True, 1


def product_threads() -> int:
    """How many threads a large product of the compiled loops has in this process; its numbers are the same with any."""
    return _threads.products


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads a process computes with. pytorch: all that PyTorch does. products: large products of loops."""

    pytorch: int
    products: int

    @classmethod
    def share(cls, among: int) -> Threads:
        """What each of so many processes has of this one's, which waits for them; at least one of either."""
        return cls(max(1, torch.get_num_threads() // among), max(1, _threads.products // among))

    def use(self) -> None:
        """Compute with them in this process."""
        if self.pytorch != torch.get_num_threads():
            torch.set_num_threads(self.pytorch)
        _threads.products = self.products


def side_by_side(
    policies: Mapping[PolicyName, P],
    names: Collection[PolicyName],
    work: Callable[[list[PolicyName]], Mapping[PolicyName, T]],
    place: Callable[[P], object],
) -> dict[PolicyName, T]:
    """What ``work`` finds for each name, in the order of the names. It is called once per place, with those there.

    Several places have a thread each. If one fails the others finish first, and the first place's error is raised.
    """
    by_place: dict[object, list[PolicyName]] = {}
    for name in names:
        by_place.setdefault(place(policies[name]), []).append(name)
    if len(by_place) <= 1:
        parts = [work(there) for there in by_place.values()]
    else:
        # A new thread does not know how many threads PyTorch was told to use.
        cores = (torch.get_num_threads(),)
        with ThreadPoolExecutor(len(by_place), initializer=torch.set_num_threads, initargs=cores) as threads:
            parts = list(threads.map(work, by_place.values()))
    found = {name: value for part in parts for name, value in part.items()}
    return {name: found[name] for name in names}
