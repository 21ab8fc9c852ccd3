"""A team behind an OpenAI-compatible endpoint: ``/v1/models`` and ``/v1/chat/completions``, streamed or not."""

from __future__ import annotations

import ipaddress
import json
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from coevolve.console import say
from coevolve.faults import raised
from coevolve.files import parse_json, read_text
from coevolve.runtime.local_web import LOOPBACK, Handler, Server, answering, is_ours, until_interrupted
from coevolve.teams import completions
from coevolve.teams.completions import RefusedError, Request
from coevolve.teams.export import export
from coevolve.teams.team import FILE, Team, described
from coevolve.teams.telling import OnPiece, Piece
from coevolve.types import Episode, Turn

_MOST_BYTES = 1 << 20  # of a request's body
_PATIENCE = 60.0  # seconds for a client to send, or to take what it is sent
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # unlike epoll, neither opens a file
_LOOK = 0.5  # seconds between two checks whether the client is still connected


def serve(path: Path, *, host: str, port: int, trust_code: bool = False) -> None:
    """Serve a team until Ctrl-C. path: an exported team, or a run, whose newest checkpoint is served. port 0: any free
    port.

    Raises ValueError as ``export`` and ``Team.load`` do, and for an address that is taken.
    """
    with playable(path, trust_code) as folder:
        name, team = described(folder).run, Team.load(folder, trust_code=trust_code or folder != path)
        with serving(team, name, host, port) as address:
            say(f"{name} at {address}v1  (Ctrl-C stops it)")
            until_interrupted()


@contextmanager
def playable(path: Path, trust_code: bool) -> Iterator[Path]:
    """Yield the folder of a team: ``path`` itself, or for a run a temporary export of it."""
    if (path / FILE).is_file():
        yield path
    elif (path / "recipe.yaml").is_file():
        with tempfile.TemporaryDirectory() as beside:  # its code is trusted from here on: export has checked it
            yield export(path, Path(beside) / path.resolve().name, trust_code=trust_code)
    else:
        raise ValueError(
            f"{path} is neither a team ({FILE}, which `coevolve export` writes) nor a run (recipe.yaml, of `coevolve "
            "train`)"
        )


@contextmanager
def serving(team: Team, name: str, host: str = LOOPBACK, port: int = 0) -> Iterator[str]:
    """Serve this team in threads; yield the address. Plays run one at a time, as they would share the processor."""
    try:
        server = _Server(team, name, host, port)
    except OSError as error:
        raise ValueError(f"--host {host} --port {port}: {error.strerror}; choose another") from error
    with answering(server) as address:
        yield address


class _Server(Server):
    def __init__(self, team: Team, name: str, host: str, port: int) -> None:
        super().__init__((host, port), _Handler)
        self.team, self.name, self.since = team, name, int(time.time())
        self.is_local = ipaddress.ip_address(str(self.server_address[0])).is_loopback
        self.last = list(team.roles)[-1]
        self.live = self.last if getattr(team.protocol, "once", False) else None
        self._playing = threading.Lock()

    def play(self, asked: Request, on_piece: OnPiece | None = None) -> list[Episode]:
        """Play a request's problem, one request at a time: several would share the processor."""
        problems = [completions.problem(asked, self.team)] * asked.n
        how: dict[str, Any] = {"seed": asked.seed, "temperature": asked.temperature, "max_new_tokens": asked.longest}
        with self._playing:
            return self.team.play_many(problems, **how, on_piece=on_piece)


class _Handler(Handler):
    server: _Server
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """Answer ``/v1/models`` and ``/v1/models/NAME``."""
        self._guarded(self._models)

    def do_POST(self) -> None:
        """Answer ``/v1/chat/completions``."""
        self._guarded(self._complete)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do the work; send any exception as an error object, so that the server goes on."""
        self.begun = False
        try:
            if self.server.is_local and not is_ours(self.headers, self.server.server_address[1]):
                raise RefusedError(
                    "this server is for programs on this machine that were given its address",
                    status=HTTPStatus.FORBIDDEN,
                )
            work()
        except RefusedError as error:
            self._failed(error.status, error.body)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client is gone
        except ValueError as error:
            self._failed(HTTPStatus.BAD_REQUEST, completions.failure(str(error), "invalid_request_error"))
        except Exception as error:  # noqa: BLE001
            say(f"error: {raised(error)}", error=True)
            self._failed(HTTPStatus.INTERNAL_SERVER_ERROR, completions.failure(raised(error), "server_error"))

    def _models(self) -> None:
        listed = completions.models(self.server.name, self.server.since)
        path = urlsplit(self.path).path
        if path == "/v1/models":
            self._answer(HTTPStatus.OK, listed)
        elif path == f"/v1/models/{self.server.name}":
            self._answer(HTTPStatus.OK, listed["data"][0])
        else:
            raise _nowhere("GET", path)

    def _complete(self) -> None:
        path = urlsplit(self.path).path
        if path != "/v1/chat/completions":
            raise _nowhere("POST", path)
        server = self.server
        asked = completions.request(self._body(), server.name)
        with closing(_as_told(partial(server.play, asked), self._gone)) as told:
            if asked.stream:
                self._stream(asked, told)
            else:
                episodes = [said for said in told if isinstance(said, Episode)]
                self._answer(HTTPStatus.OK, completions.completion(asked, episodes, server.last))

    def _stream(self, asked: Request, told: Iterator[Piece | Turn | Episode]) -> None:
        stream = completions.Stream(asked.model, self.server.live)
        for said in told:
            if isinstance(said, Episode):
                for chunk in stream.ended(asked, said, self.server.last):
                    self._event(chunk)
            else:
                self._event(stream.told(said))
        self.wfile.write(b"data: [DONE]\n\n")

    def _gone(self) -> bool:
        """Return whether the client has closed its connection before the answer is complete."""
        try:
            with _Selector() as looking:
                looking.register(self.connection, selectors.EVENT_READ)
                return bool(looking.select(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _body(self) -> dict[str, Any]:
        if self.headers.get_content_type() != "application/json":  # web pages cannot send it without a CORS preflight
            raise RefusedError(
                "the body is no application/json; send that, and say so in Content-Type",
                status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            )
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise RefusedError("no Content-Length; want the body's", status=HTTPStatus.LENGTH_REQUIRED)
        if int(length) > _MOST_BYTES:
            raise RefusedError(
                f"the body has {length} bytes; want at most {_MOST_BYTES}", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        return parse_json(read_text(Path("request"), self.rfile.read(int(length))), "request")

    def _event(self, chunk: Mapping[str, Any]) -> None:
        """Send one event of a streamed answer; the first one is preceded by the response's headers."""
        if not self.begun:
            self.begun = True
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def _failed(self, status: int, error: Mapping[str, Any]) -> None:
        try:
            if self.begun:  # the status has been sent: clients look for an error among the events
                self._event(error)
            else:
                self._answer(status, error)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _answer(self, status: int, found: Mapping[str, Any]) -> None:
        self.answer(status, json.dumps(found).encode(), "application/json")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error of ``http.server`` itself, such as an unsupported method, as an OpenAI error object."""
        said = message or HTTPStatus(code).phrase
        self._answer(code, completions.failure(said, "invalid_request_error"))


class _LeftError(Exception):
    """The client is gone."""


def _as_told(
    play: Callable[[OnPiece], Sequence[Episode]], gone: Callable[[], bool]
) -> Generator[Piece | Turn | Episode]:
    """Yield a play's pieces and turns as they are sampled, then its episodes.

    The play runs in a thread of its own, so that a slow client does not delay other requests. If the generator is
    closed before its end, the play stops at the next token, and one that still waits for other plays at its first.
    Raises ConnectionAbortedError once ``gone`` returns True.
    """
    inbox, left = SimpleQueue[Piece | Turn | Sequence[Episode] | BaseException](), threading.Event()

    def tell(said: Piece | Turn) -> None:
        if left.is_set():
            raise _LeftError
        inbox.put(said)

    def run() -> None:
        try:
            inbox.put(play(tell))
        except BaseException as error:  # noqa: BLE001  (raised by the reader, which would wait for ever otherwise)
            inbox.put(error)

    def heard() -> Piece | Turn | Sequence[Episode] | BaseException:
        while not gone():
            with suppress(Empty):
                return inbox.get(timeout=_LOOK)
        raise ConnectionAbortedError("nobody listens any more")

    threading.Thread(target=run, daemon=True).start()
    try:
        while isinstance(said := heard(), Piece | Turn):
            yield said
        if isinstance(said, BaseException):
            raise said
        yield from said
    finally:
        left.set()


def _nowhere(method: str, path: str) -> RefusedError:
    return RefusedError(
        f"no {method} {path} here; there are GET /v1/models and POST /v1/chat/completions",
        status=HTTPStatus.NOT_FOUND, code="unknown_url",
    )  # fmt: skip
