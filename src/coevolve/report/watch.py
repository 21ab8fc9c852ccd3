"""The live page of running trainings, served on this machine; the page polls for news every few seconds."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from coevolve.console import say
from coevolve.report.page.build import Content, content, html
from coevolve.report.runs import Run, find
from coevolve.runtime.local_web import LOOPBACK, Handler, Server, answering, is_ours, until_interrupted

_REST = 5.0  # pause between two readings, as a multiple of the time of the last: training needs the processor


def watch(paths: Sequence[Path], port: int = 0) -> None:
    """Serve the page of these runs until Ctrl-C; port 0 is any free one. Runs that have not finished a step appear once
    they have. Raises ValueError for a path that does not exist, or a port that is taken."""
    with serving(paths, port) as address:
        say(f"{address}  (Ctrl-C stops it)")
        until_interrupted()


@contextmanager
def serving(paths: Sequence[Path], port: int = 0) -> Iterator[str]:
    """Run a server for these runs in a thread; yields its address."""
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist; start the training, then watch it")
    try:
        server = _Server(paths, port)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "a port is a number from 0 to 65535"
        raise ValueError(f"--port {port}: {why}; choose another, or leave it out") from error
    with answering(server) as address:
        yield address


class _Server(Server):
    """The server, which holds the newest content and reads the runs again on a request if their files have changed."""

    def __init__(self, paths: Sequence[Path], port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.paths, self.page = paths, html(None).encode()
        self.content: Content | None = None
        self.waiting: list[str] = []
        self.version = ""
        self._seen, self._rested = "", 0.0
        self._lock = threading.Lock()

    def refresh(self) -> tuple[Content | None, str]:
        """Read the runs again if they have changed; return the content and its version."""
        with self._lock:
            seen = _signature(self.paths)
            if seen == self._seen or time.monotonic() < self._rested:
                return self.content, self.version
            began = time.monotonic()
            runs, self.waiting = _ready(self.paths)
            if runs:
                try:
                    self.content, self.version = content(runs), seen
                except ValueError as error:  # from a file beside the metrics; the page keeps its former content
                    self.waiting.append(f"Waiting: {error}")
            self._seen, now = seen, time.monotonic()
            self._rested = now + _REST * (now - began)
            return self.content, self.version


def _ready(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs that can be shown, and a message on each of the others."""
    runs: list[Run] = []
    waiting: list[str] = []
    folders = {folder.resolve(): folder for path in paths for folder in _folders(path) or [path]}
    for folder in folders.values():
        try:
            runs += find([folder])
        except ValueError as error:
            waiting.append(f"Waiting: {error}")
    return runs, waiting


def _folders(path: Path) -> list[Path]:
    """Return the run directories at this path, whether they have finished a step or not."""
    return sorted(file.parent for pattern in ("metrics.jsonl", "*/metrics.jsonl") for file in path.glob(pattern))


def _signature(paths: Sequence[Path]) -> str:
    """Return a hash that changes whenever a file of a run changes."""
    folders = [folder for path in paths for folder in _folders(path)]
    files = sorted(file for folder in folders for ending in ("json", "jsonl") for file in folder.glob(f"*.{ending}"))
    stats = []
    for file in files:
        with suppress(FileNotFoundError):  # deleted since it was listed
            found = file.stat()
            stats.append((str(file), found.st_size, found.st_mtime_ns))
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:16]


class _Handler(Handler):
    server: _Server

    def do_GET(self) -> None:
        """Answer ``/`` with the page, ``/data?seen=VERSION`` with the news, ``/chunk/ID`` with dialogues."""
        if not is_ours(self.headers, self.server.server_address[1]):
            self.send_error(
                HTTPStatus.FORBIDDEN, "this page is for browsers on this machine that were given its address"
            )
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self.answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif address.path == "/data":
            seen = parse_qs(address.query).get("seen", [""])[0]
            self.answer(HTTPStatus.OK, self._news(seen).encode(), "application/json")
        elif self.server.content and (chunk := self.server.content.chunks.get(address.path.removeprefix("/chunk/"))):
            self.answer(HTTPStatus.OK, chunk.encode(), "text/plain")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _news(self, seen: str) -> str:
        content, version = self.server.refresh()
        news = {"waiting": self.server.waiting, "version": version}
        return json.dumps(news | ({"overview": content.overview} if content and version != seen else {}))
