"""Sampling one step ahead: the next step's episodes are played while this one is learnt from.

Their turns are of the weights before that update, which is what ``staleness: 1`` of an engine means. It samples copies
of weights (a server), or sampling and learning would be of the same tensors at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from coevolve.measure import Clock
from coevolve.types import Algorithm, Episode


class Ahead:
    """The episodes of steps, some of which were sampled ahead. sample: (step, clock) -> its episodes. staleness: 0
    samples every step when it is asked for, 1 one ahead."""

    def __init__(self, sample: Callable[[int, Clock], list[Episode]], staleness: int) -> None:
        self.sample, self.staleness = sample, staleness
        self._next: tuple[int, Future[tuple[list[Episode], Clock]]] | None = None

    def episodes(self, i: int, clock: Clock) -> list[Episode]:
        """Those of step i, and on the clock what they took."""
        sampled, self._next = self._next, None
        if sampled is None or sampled[0] != i:  # whoever calls steps may take another one
            return self.sample(i, clock)
        episodes, other = sampled[1].result()
        clock.seconds |= other.seconds
        return episodes

    @contextmanager
    def sampling(self, i: int | None) -> Iterator[None]:
        """Inside, step i (None: there is none) is sampled by the weights that are published; left once that is done."""
        if not self.staleness or i is None:
            yield
            return

        def sampled() -> tuple[list[Episode], Clock]:
            clock = Clock()
            return self.sample(i, clock), clock  # what fails is told of its step by who asks for it

        with ThreadPoolExecutor(1, "ahead", torch.set_num_threads, (torch.get_num_threads(),)) as beside:
            following = beside.submit(sampled)
            yield
        self._next = i, following

    def forget(self) -> None:
        """What was sampled ahead is sampled again, by the weights of then: a resumed run has none that are older."""
        self._next = None


def check_corrected(staleness: int, algorithm: Algorithm) -> None:
    """Raises ValueError for turns older than the weights that learn from them, and an algorithm that does not mind."""
    where, settings = "algorithm", algorithm.settings
    if isinstance(settings.get("agents"), Mapping):  # those who speak learn by another one
        where, settings = "algorithm.agents", settings["agents"]
    if staleness and settings.get("mismatch", "none") == "none":
        raise ValueError(
            f"the engine's staleness is {staleness}, so turns are of weights one update older than those that learn; "
            f"set {where}.mismatch (tis, icepop or sequence) of an algorithm that has it, or staleness: 0"
        )


def staleness_of(engine: Any) -> int:
    """By how many updates the turns of an engine, which has its policies, may be older than the weights that learn from
    them. Raises ValueError where it samples the weights that learn."""
    found: int = getattr(engine, "staleness", 0)
    if found and getattr(engine, "overlapped", None) is None:
        raise ValueError(
            f"the engine's staleness is {found}, and some policy is sampled in this process, by the weights that "
            "learn; give every policy a server, or say staleness: 0"
        )
    return found
