"""What rewards give, and those that are waited for: coroutines, which run side by side in one thread of their own.

The thread and its event loop stay, because clients of servers belong to the loop in which they first asked. Plain
functions are called where everything else runs: some of them (``signal.alarm``) work nowhere else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar

from coevolve.types import Case, Metrics, Problem, Role

Result = TypeVar("Result")

AT_ONCE = 64
"""Calls of one function that are waited for at a time."""


@dataclass(frozen=True, slots=True)
class Paid:
    """What one reward gives one case: a number per turn, or None where it does not apply. logged: other numbers that it
    has to tell, by name."""

    rewards: list[float] | None
    logged: Metrics = field(default_factory=dict)


Started = list[Paid] | Callable[[], Coroutine[Any, Any, list[Paid]]]
"""What a reward gives all cases, or what will wait for it."""


class Scorer(Protocol):
    """One reward of several. name: what its numbers are logged as. tells: whether it has more to log than those."""

    @property
    def name(self) -> str: ...

    @property
    def tells(self) -> bool: ...

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raises ValueError if it could not judge one turn of each role; judges nothing."""
        ...

    def start(self, cases: Sequence[Case]) -> Started:
        """One result per case."""
        ...


def finished(started: Sequence[Started]) -> list[list[Paid]]:
    """All of them, once those that are waited for have come, side by side. Of several errors the first is raised."""
    waited = [place for place, one in enumerate(started) if callable(one)]
    found: list[Any] = list(started)
    if waited:
        waiting = asyncio.run_coroutine_threadsafe(_all(found[place] for place in waited), _loop())
        try:
            for place, result in zip(waited, waiting.result(), strict=True):
                found[place] = result
        finally:
            waiting.cancel()  # where this thread was interrupted
    return found


async def each(calls: Iterable[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """What all calls give, in their order, so many at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(call: Callable[[], Awaitable[Result]]) -> Result:
        async with room:
            return await call()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(call)) for call in calls]
    return [task.result() for task in tasks]


async def _all(started: Iterable[Callable[[], Awaitable[list[Paid]]]]) -> list[list[Paid]]:
    try:
        return await each(started)
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    """The first error of those that tasks raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop
