"""HTTP requests to a server: many in flight, one deadline for all, and errors that tell the server's faults from the
caller's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from coevolve.faults import ShortageError, lacking
from coevolve.names import server_of

MAX_CONNECTIONS = 256
"""The most requests in flight; the server queues those that it cannot batch."""

_SAID = 300  # characters of a server's answer that an error message quotes

T = TypeVar("T")


class FailedError(Exception):
    """A request that may succeed when repeated: no answer, an incomplete one, or an error of the server (5xx)."""


class NotFoundError(ValueError):
    """A request that the server answered with 404: it has no such route, or not the thing that the request names."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()


def base_of(url: str) -> str:
    """Return a server's address without the ``/v1`` that clients of OpenAI's API are given. Raises ValueError for an
    address that is none."""
    try:
        parts = urlsplit(url)
        well = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, or too large
        well = False
    if not well:
        raise ValueError(f"url is {url!r}; want one such as http://127.0.0.1:8000")
    return server_of(url)


def client_of(url: str) -> httpx2.AsyncClient:
    """Return an HTTP client of this server, without timeouts."""
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
    # trust_env=False: requests to a server that a recipe names do not use the proxies that the environment sets.
    return httpx2.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False)


@asynccontextmanager
async def requests(url: str, seconds: float, late: Callable[[], str]) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield an HTTP client of this server; raise ShortageError, with the text of ``late()``, once ``seconds`` have
    passed."""
    try:
        async with asyncio.timeout(seconds), client_of(url) as client:
            yield client
    except TimeoutError as error:
        raise ShortageError(f"{late()} within {seconds:g} s") from error


async def sent(client: httpx2.AsyncClient, route: str, body: Any = None) -> httpx2.Response:
    """Send a GET, or with a body a POST of it as JSON, and return the answer.

    Raises FailedError without an answer or for a status from 500, ValueError for a status from 400 to 499, of these
    NotFoundError for 404, and ShortageError for want of open files here.
    """
    try:
        answer = await (client.get(route) if body is None else client.post(route, json=body))
    except httpx2.HTTPError as error:
        raise _failed(route, error) from error
    return _accepted(route, answer)


def asked(url: str, route: str, body: Any, seconds: float) -> httpx2.Response:
    """Do as ``sent`` without an event loop, by a connection of its own. seconds: until a FailedError for want of an
    answer."""
    try:
        with httpx2.Client(base_url=url, timeout=seconds, trust_env=False) as client:
            answer = client.get(route) if body is None else client.post(route, json=body)
    except httpx2.HTTPError as error:
        raise _failed(route, error) from error
    return _accepted(route, answer)


def _failed(route: str, error: BaseException) -> FailedError | ShortageError:
    """Return what to raise without an answer: the library says "All connection attempts failed" also where it is this
    process that has no file left for a connection."""
    for cause in _causes(error):
        # A number is the system's: errors of ours, which may have been handled when the request was made, have none.
        if isinstance(cause, OSError) and cause.errno is not None and (line := lacking(cause)):
            return ShortageError(f"{route}: {line}")
    return FailedError(f"{route}: {type(error).__name__} {error}".strip())


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it came from: a host of several addresses has one of each."""
    while error is not None:
        yield error
        for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(one)
        error = error.__cause__ or error.__context__


def _accepted(route: str, answer: httpx2.Response) -> httpx2.Response:
    if answer.status_code >= 500:
        raise FailedError(f"{route} answers {answer.status_code}, {cut(answer)!r}")
    if answer.status_code >= 400:
        kind = NotFoundError if answer.status_code == 404 else ValueError
        raise kind(f"{route} is refused with {answer.status_code}, {cut(answer)!r}")
    return answer


def is_well(url: str, seconds: float) -> bool:
    """Return whether the server's ``/health`` answers 200 within ``seconds``. Raises ShortageError as ``sent``."""
    try:
        asked(url, "/health", None, seconds)
    except (FailedError, ValueError):
        return False
    return True


def cut(answer: httpx2.Response) -> str:
    """Return the beginning of an answer's text, in one line."""
    return " ".join(answer.text.split())[:_SAID]
