"""The results of rewards, and the event loop that runs async rewards concurrently, in a thread of its own.

The thread and its event loop stay alive, because HTTP clients are bound to the loop of their first request. Plain
functions are called in the caller's thread: some of them (``signal.alarm``) work in the main thread only.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar

from coevolve.types import Case, Metrics, Problem, Role

Result = TypeVar("Result")

MAX_CALLS = 64
"""Most concurrent calls of one async function."""


@dataclass(frozen=True, slots=True)
class Paid:
    """The result of one reward for one case. rewards: a number per turn, or None if the reward does not apply. logged:
    other numbers to log, by name."""

    rewards: list[float] | None
    logged: Metrics = field(default_factory=dict)


Started = list[Paid] | Callable[[], Coroutine[Any, Any, list[Paid]]]
"""The results of a reward for all cases, or a function that returns a coroutine for them."""


class Scorer(Protocol):
    """A single reward. name: the name that its numbers are logged as. tells: whether it logs more than its reward."""

    @property
    def name(self) -> str: ...

    @property
    def tells(self) -> bool: ...

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raise ValueError if this reward could not judge one turn of each role; does not judge anything."""
        ...

    def start(self, cases: Sequence[Case]) -> Started:
        """Return one result per case, or what will await them."""
        ...


def finished(started: Sequence[Started]) -> list[list[Paid]]:
    """Return the results of all rewards, running the async ones concurrently. Of several errors, raise the first."""
    waited = [place for place, one in enumerate(started) if callable(one)]
    found: list[Any] = list(started)
    if waited:
        waiting = asyncio.run_coroutine_threadsafe(_all(found[place] for place in waited), _loop())
        try:
            for place, result in zip(waited, waiting.result(), strict=True):
                found[place] = result
        finally:
            waiting.cancel()  # has an effect only if this thread was interrupted
    return found


async def each(calls: Iterable[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """Return the results of all calls, in order, with at most ``MAX_CALLS`` of them running at a time."""
    room = asyncio.Semaphore(MAX_CALLS)

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
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _loop() -> asyncio.AbstractEventLoop:
    return _loop_of(os.getpid())  # a forked process has no threads of its parent, and so none that runs its loop


@cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop
