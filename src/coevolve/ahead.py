"""Sampling one step ahead: the next step's episodes are sampled during the update of this step.

Their turns come from the weights before that update, which is what ``staleness: 1`` of an engine means. The engine must
have its own copy of the weights (a server), or sampling would read tensors while they are updated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from coevolve.measure import Clock
from coevolve.runtime.placement import thread_pool
from coevolve.types import Episode


class Ahead:
    """The episodes of each step, possibly sampled ahead. sample: (step, clock) -> its episodes. staleness: 0 samples
    each step when its episodes are requested, 1 during the update before."""

    def __init__(self, sample: Callable[[int, Clock], list[Episode]], staleness: int) -> None:
        self.sample, self.staleness = sample, staleness
        self._next: tuple[int, Future[tuple[list[Episode], Clock]]] | None = None

    def episodes(self, i: int, clock: Clock) -> list[Episode]:
        """Return the episodes of step i, and add the time of their sampling to the clock."""
        sampled, self._next = self._next, None
        if sampled is None or sampled[0] != i:  # a user who calls ``step`` may skip some
            return self.sample(i, clock)
        episodes, other = sampled[1].result()
        clock.seconds |= other.seconds
        return episodes

    @contextmanager
    def sampling(self, i: int | None) -> Iterator[None]:
        """In this context, sample step i (None: nothing) with the published weights; the exit waits for the end."""
        if not self.staleness or i is None:
            yield
            return

        def sampled() -> tuple[list[Episode], Clock]:
            clock = Clock()
            return self.sample(i, clock), clock  # an error is raised where ``episodes`` asks for the result

        with thread_pool(1, "ahead") as beside:
            following = beside.submit(sampled)
            yield
        self._next = i, following

    def forget(self) -> None:
        """Drop episodes sampled ahead, to be sampled again with newer weights, as a resumed run does."""
        self._next = None


def staleness_of(engine: Any) -> int:
    """Return by how many updates an engine's turns may be older than the weights that learn from them. Call it after
    the first publish. Raises ValueError for staleness of an engine that samples the learning weights themselves."""
    found: int = getattr(engine, "staleness", 0)
    if found and getattr(engine, "overlapped", None) is None:
        raise ValueError(
            f"the engine's staleness is {found}, and some policy is sampled in this process, by the weights that "
            "learn; give every policy a server, or say staleness: 0"
        )
    return found
