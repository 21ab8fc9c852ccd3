"""Turns that are sampled one by one by a server, while the calling thread does other work."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from coevolve.engines.base import Sample
from coevolve.faults import ShortageError
from coevolve.interfaces import Published
from coevolve.runtime.requests import MAX_CONNECTIONS, client_of
from coevolve.types import PolicyName, Say, Turn

Inbox = SimpleQueue[Callable[[], None]]


class Sampler(Protocol):
    """What a flight asks of its engine, a ``ServerEngine``. seconds: the deadline of a turn."""

    url: str | None
    seconds: float
    about: str
    published: dict[PolicyName, Published]

    def check_sampling(self, say: Say) -> None: ...
    def check_context(self, say: Say) -> None: ...
    async def one(self, client: Any, speaker: Published, say: Say) -> Sample: ...
    def whose(self, name: PolicyName, say: Say) -> str: ...
    def explained(self) -> AbstractContextManager[None]: ...
    def revive(self, error: OSError) -> bool: ...
    def turn(self, say: Say, sample: Sample) -> Turn: ...


class Flight:
    """The requests in flight, sent by a thread of their own; their results go to the inbox, which the calling thread
    reads."""

    def __init__(self, engine: Sampler, inbox: Inbox) -> None:
        self.engine, self.inbox = engine, inbox
        self.asked: dict[int, tuple[Say, Callable[[Turn], None]]] = {}
        self.numbers = itertools.count()
        self._begin()

    def ask(self, say: Say, then: Callable[[Turn], None]) -> None:
        """Send the request of a say; ``then`` is called with its turn. Raises ValueError for a say that does not fit
        into the context, or whose sampling a policy cannot learn from."""
        self.engine.check_sampling(say)
        self.engine.check_context(say)
        number = next(self.numbers)
        self.asked[number] = say, then
        self._send(number)

    def end(self) -> None:
        """Cancel all requests in flight."""
        if not self.thread.is_alive():  # it could not begin again
            return
        self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join()

    def _begin(self) -> None:
        assert self.engine.url is not None
        self.client, there = client_of(self.engine.url), Future[None]()
        self.thread = threading.Thread(target=self._fly, args=(there,), daemon=True)
        self.thread.start()
        there.result()

    def _fly(self, there: Future[None]) -> None:
        """Send requests until ``end``; ``asyncio.run`` then cancels those that are left. there: done once requests can
        be sent, or with the error for which they cannot, as for want of open files."""
        work = self._until_over(there)
        try:
            asyncio.run(work)
        except BaseException as error:
            if there.done():
                raise
            work.close()
            there.set_exception(error)

    async def _until_over(self, there: Future[None]) -> None:
        """Keep one client open for all requests."""
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        self.room = asyncio.Semaphore(MAX_CONNECTIONS)  # a deadline does not count the wait for a connection
        async with self.client:
            there.set_result(None)
            await self.over.wait()

    def _send(self, number: int) -> None:
        def told(done: Future[Sample]) -> None:
            if not done.cancelled():
                self.inbox.put(partial(self._back, number, done))

        asyncio.run_coroutine_threadsafe(self._sampled(self.asked[number][0]), self.loop).add_done_callback(told)

    async def _sampled(self, say: Say) -> Sample:
        engine = self.engine
        try:
            async with self.room, asyncio.timeout(engine.seconds):
                return await engine.one(self.client, engine.published[say.policy], say)
        except TimeoutError as error:
            whose = engine.whose(say.policy, say)
            raise ShortageError(f"{whose}: {engine.about} left it unanswered for {engine.seconds:g} s") from error

    def _back(self, number: int, done: Future[Sample]) -> None:
        """Pass the turn of a finished request to its callback. Raises the request's error, unless the server was
        restarted and all open requests were sent again."""
        if number not in self.asked:
            return  # from a server that died; the request was sent again
        try:
            with self.engine.explained():
                sample = done.result()
        except OSError as error:
            if not self.engine.revive(error):
                raise
            self._again()
            return
        say, then = self.asked.pop(number)
        then(self.engine.turn(say, sample))

    def _again(self) -> None:
        """Send all unanswered requests to the restarted server: with the same keys, hence for the same turns."""
        self.end()
        self._begin()
        left, self.asked = list(self.asked.values()), {}
        for one in left:
            number = next(self.numbers)
            self.asked[number] = one
            self._send(number)
