"""Requests to a server over HTTP: many in flight, one deadline for all, and errors that say whose fault it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2

from coevolve.faults import ShortageError

AT_ONCE = 256
"""In flight; a server's own queue takes what it cannot batch."""

_SAID = 300  # characters of what a server says

T = TypeVar("T")


class FailedError(Exception):
    """A request that might do better a second time: no answer, half of one, or the server's own fault."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """What it comes to, also where a loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()


def client_of(url: str) -> httpx2.AsyncClient:
    """A client of this server, without deadlines."""
    limits = httpx2.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    # No proxy stands between a server that a recipe names and us, whatever the environment has for the rest of the web.
    return httpx2.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False)


@asynccontextmanager
async def requests(url: str, seconds: float, late: Callable[[], str]) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of this server for as long as the deadline lets it. Raises ShortageError of what ``late`` says then."""
    try:
        async with asyncio.timeout(seconds), client_of(url) as client:
            yield client
    except TimeoutError as error:
        raise ShortageError(f"{late()} within {seconds:g} s") from error


async def sent(client: httpx2.AsyncClient, route: str, body: Any = None) -> httpx2.Response:
    """The answer: to a GET without a body, else to a POST of it as JSON.

    Raises FailedError, and ValueError for what the server refuses: a status from 400 to 499.
    """
    try:
        answer = await (client.get(route) if body is None else client.post(route, json=body))
    except httpx2.HTTPError as error:
        raise FailedError(f"{route}: {type(error).__name__} {error}".strip()) from error
    if answer.status_code >= 500:
        raise FailedError(f"{route} answers {answer.status_code}, {cut(answer)!r}")
    if answer.status_code >= 400:
        raise ValueError(f"{route} is refused with {answer.status_code}, {cut(answer)!r}")
    return answer


def is_well(url: str, seconds: float) -> bool:
    """Whether a server says that it is, in so many seconds."""
    try:
        return httpx2.get(f"{url}/health", timeout=seconds, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def cut(answer: httpx2.Response) -> str:
    """The beginning of what it says, in one line."""
    return " ".join(answer.text.split())[:_SAID]
