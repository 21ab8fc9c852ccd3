"""The page of runs that are still going on, served on this machine: it asks every few seconds what is new."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from coevolve.console import say
from coevolve.report.page.build import Content, content, html
from coevolve.report.runs import Run, find
from coevolve.runtime.local_web import LOOPBACK, Handler, Server, answering, is_ours, until_interrupted

_REST = 5.0  # times as long as reading and packing took, before it is done again: training needs the processor


def watch(paths: Sequence[Path], port: int = 0) -> None:
    """Serve the page of these runs until Ctrl-C; port 0 is any free one. A run that has not finished a step is waited
    for. Raises ValueError for a path that does not exist, or a port that is taken."""
    with serving(paths, port) as address:
        say(f"{address}  (Ctrl-C stops it)")
        until_interrupted()


@contextmanager
def serving(paths: Sequence[Path], port: int = 0) -> Iterator[str]:
    """A server for these runs, in a thread; yields its address."""
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
    """Knows the newest content, and reads the runs again when somebody asks and their files have changed."""

    def __init__(self, paths: Sequence[Path], port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.paths, self.page = paths, html(None).encode()
        self.content: Content | None = None
        self.waiting: list[str] = []
        self.version = ""
        self._seen, self._rested = "", 0.0
        self._lock = threading.Lock()

    def refresh(self) -> None:
        with self._lock:
            seen = _signature(self.paths)
            if seen == self._seen or time.monotonic() < self._rested:
                return
            began = time.monotonic()
            runs, self.waiting = _ready(self.paths)
            if runs:
                try:
                    self.content, self.version = content(runs), seen
                except ValueError as error:  # of a file beside the metrics; what was there before stays on the page
                    self.waiting.append(f"Waiting: {error}")
            self._seen, now = seen, time.monotonic()
            self._rested = now + _REST * (now - began)


def _ready(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that have something to show, and why the others have not."""
    runs: list[Run] = []
    waiting: list[str] = []
    for path in paths:
        for folder in _folders(path) or [path]:
            try:
                runs += find([folder])
            except ValueError as error:
                waiting.append(f"Waiting: {error}")
    return runs, waiting


def _folders(path: Path) -> list[Path]:
    """The run directories at this path, finished steps or not."""
    return sorted(file.parent for pattern in ("metrics.jsonl", "*/metrics.jsonl") for file in path.glob(pattern))


def _signature(paths: Sequence[Path]) -> str:
    """Another one whenever a file of a run has changed."""
    folders = [folder for path in paths for folder in _folders(path)]
    files = sorted(file for folder in folders for ending in ("json", "jsonl") for file in folder.glob(f"*.{ending}"))
    stats = [(str(file), found.st_size, found.st_mtime_ns) for file in files for found in [file.stat()]]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:16]


class _Handler(Handler):
    server: _Server

    def do_GET(self) -> None:
        """``/`` the page, ``/data?seen=VERSION`` what is new, ``/chunk/ID`` dialogues."""
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
        self.server.refresh()
        shown = self.server.content if self.server.version != seen else None
        news = {"waiting": self.server.waiting, "version": self.server.version}
        return json.dumps(news | ({"overview": shown.overview} if shown else {}))
